"""Models of partial configs, and tfm's model in a loop of one's own."""

import jax
import numpy as np
import optax
import pytest

import tfm
from tfm.config.schema import default_config, leaves


TINY = dict(model=dict(layers=2, width=16, heads=2), data=dict(length=8))
TOKENS = jax.random.randint(jax.random.key(0), (3, 8), 0, 256)


def test_a_partial_config_is_completed():
  built = tfm.build(TINY)
  fields = dict(leaves(built.config))
  assert fields['model.width'] == 16 and fields['model.feed_forward_width'] == 64
  defaults = {path for path, value in leaves(default_config()) if value is not None}
  same = {path for path in defaults if fields[path] == dict(leaves(default_config()))[path]}
  assert defaults - same == {'model.layers', 'model.width', 'model.heads', 'data.length'}
  assert output_of(built, TOKENS).shape == (3, 8, 257)  # bytes and the end of a text
  assert output_of(tfm.build(TINY, vocab=11), TOKENS % 11).shape == (3, 8, 11)


def output_of(built, *inputs):
  """The shapes of its output."""
  return jax.eval_shape(lambda: built.apply(built.init(jax.random.key(1)), *inputs))


def test_logits_are_causal_and_dropout_needs_a_key():
  built = tfm.build(TINY | dict(model=TINY['model'] | dict(dropout=dict(residual=0.5))))
  params = built.init(jax.random.key(1))
  logits = built.apply(params, TOKENS)
  np.testing.assert_allclose(built.apply(params, TOKENS[:, :5]), logits[:, :5], atol=1e-5)
  np.testing.assert_array_equal(built.apply(params, TOKENS), logits)
  dropped = [built.apply(params, TOKENS, dropout_key=jax.random.key(seed)) for seed in (0, 0, 1)]
  np.testing.assert_array_equal(dropped[0], dropped[1])
  assert not np.allclose(dropped[0], logits) and not np.allclose(dropped[0], dropped[2])


@pytest.mark.parametrize(
  'model, more, inputs, shape',
  [
    (dict(architecture='encoder'), dict(objective='masked_lm'), 1, None),
    (
      dict(architecture='encoder_decoder'),
      dict(objective='seq2seq', data=dict(length=8, source='parallel("a", "b")', packing='padded')),
      2,
      (3, 8, 257),
    ),
  ],
)
def test_other_architectures(model, more, inputs, shape):
  built = tfm.build(TINY | more | dict(model=TINY['model'] | model))
  output = output_of(built, *[TOKENS] * inputs)
  if shape is None:
    assert output['vocabulary'].shape == (3, 8, 258)  # with <mask>
  else:
    assert output.shape == shape


def test_a_name_of_a_config_and_a_loop_of_ones_own():
  built = tfm.build('lm:smoke')
  optimizer = optax.adam(1e-2)
  params = built.init(jax.random.key(0))
  state = optimizer.init(params)

  @jax.jit
  def step(params, state):
    def loss_of(params):
      logits = built.apply(params, TOKENS[:, :-1])
      return optax.softmax_cross_entropy_with_integer_labels(logits, TOKENS[:, 1:]).mean()

    loss, gradient = jax.value_and_grad(loss_of)(params)
    updates, state_after = optimizer.update(gradient, state, params)
    return optax.apply_updates(params, updates), state_after, loss

  losses = []
  for _ in range(30):
    params, state, loss = step(params, state)
    losses.append(float(loss))
  assert abs(losses[0] - np.log(257)) < 0.3 and losses[-1] < 2


@pytest.mark.parametrize(
  'config, sentence',
  [
    (dict(model=dict(witdh=3)), "config.model.witdh=3 is not a field.*did you mean 'width'"),
    (dict(model=dict(heads=5)), 'config.model.heads=5 does not divide'),
    (dict(data=dict(tokenizer='char')), "config.data.tokenizer='char' has as many tokens .*; give vocab="),
    ('nowhere', 'nowhere'),
  ],
)
def test_invalid_configs_are_refused(config, sentence):
  with pytest.raises(ValueError, match=sentence):
    tfm.build(config)


def test_adapters_are_among_the_parameters():
  params = tfm.build(TINY | dict(lora=dict(rank=2))).init(jax.random.key(0))
  assert 'lora_down' in params['stack']['layers']['block_0']['mixer']['q']
