"""The encoder: BERT's own formula, which token depends on which, padding, and refusals."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.pairs import context
from tests.reference import encoder
from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.config.validate import validate_documents


VOCAB, LENGTH = 23, 8
MODEL = dict(
  architecture='encoder',
  layers=2,
  width=16,
  heads=4,
  feed_forward_width=32,
  bias=True,
  vocab_multiple=8,
  scan=False,
  position='learned',
  norm_placement='post',
  embedding_norm=True,
  token_types=2,
  pooled_transform='tanh',
  output_transform='gelu',
  output_bias=True,
)
DRAW = np.random.default_rng(0)
B, T = 2, 7
TOKENS, TYPES = DRAW.integers(0, VOCAB, (B, T)), DRAW.integers(0, 2, (B, T))
SEGMENTS = np.array([[1] * T, [1] * 4 + [0] * 3])


def config(objective='masked_lm(next_sentence=True)', packing='sentence_pairs', **model):
  return resolve_config(
    complete(dict(data=dict(length=LENGTH, packing=packing), objective=objective, model=MODEL | model))
  )


@functools.cache
def make_encoder(**model):
  model = Experiment(config(**model)).build_model(VOCAB - 1)  # and <mask>
  shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), *model.example(1, LENGTH)))['params']
  draw = np.random.default_rng(1)

  def make(path, x):
    about = 1.0 if path[-1].key == 'scale' else 0.0
    return jnp.asarray(about + 0.4 * draw.standard_normal(x.shape), jnp.float32)

  return model, jax.tree_util.tree_map_with_path(make, shapes)


@functools.partial(jax.jit, static_argnums=0)
def answers(model, params, tokens, here, types, places=None):
  return model.apply({'params': params}, tokens, here, types, places)[0]


def test_bert():
  model, params = make_encoder()
  exact = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  logits, following = encoder.forward(exact, TOKENS, TYPES, SEGMENTS)
  found = answers(model, params, TOKENS, context(SEGMENTS), TYPES)
  there = SEGMENTS > 0
  np.testing.assert_allclose(found['vocabulary'][there], logits[there][:, :VOCAB], rtol=5e-5, atol=5e-5)
  np.testing.assert_allclose(found['next_sentence'], following, rtol=5e-5, atol=5e-5)


def test_a_narrow_table_is_a_product():
  """It is lifted before types and positions are added, and what goes down goes after the transform."""
  (model, params), (plain, _) = make_encoder(embedding_width=6), make_encoder(tie_embeddings=False)
  narrow = params['embedding']
  whole = {
    'embedding': {'table': narrow['table'] @ narrow['project_in']['kernel']},
    'output': {'kernel': narrow['project_out']['kernel'] @ narrow['table'].T},
  }
  found, expected = (
    answers(m, p, TOKENS, context(SEGMENTS), TYPES) for m, p in ((model, params), (plain, params | whole))
  )
  for name in expected:
    np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-4)


def test_logits_at_chosen_places():
  model, params = make_encoder()
  places = np.array([[6, 0, 3], [1, 1, 2]])
  everywhere, there = (answers(model, params, TOKENS, context(SEGMENTS), TYPES, p) for p in (None, places))
  np.testing.assert_allclose(
    there['vocabulary'],
    np.take_along_axis(everywhere['vocabulary'], places[..., None], 1),
    rtol=1e-5,
    atol=1e-5,
  )


def test_every_token_depends_on_every_other_and_on_no_padding():
  model, params = make_encoder()

  def run(x):  # of the second row, through the table that the first type stands in
    shifted = params | {'type_embedding': {'table': jnp.zeros_like(params['type_embedding']['table'])}}
    make_encoder = model.apply(
      {'params': shifted}, x, context(SEGMENTS[1:]), method=lambda m, x, c: m.run(x, None, c, None)[0]
    )
    return make_encoder[0].sum(-1)

  x = jnp.asarray(DRAW.standard_normal((1, T, 16)), jnp.float32)
  visible = np.abs(jax.jit(jax.jacrev(run))(x))[:, 0].max(-1) > 0
  assert visible[:4, :4].all()
  assert not visible[:4, 4:].any()


@pytest.mark.parametrize('pooling', ['first', 'mean'])
def test_padding_changes_nothing(pooling):
  model, params = make_encoder(pooling=pooling)
  short = answers(model, params, TOKENS[:, :4], context(SEGMENTS[:, :4]), TYPES[:, :4])
  for extra in (7, 3):
    padded = np.where(SEGMENTS[1] > 0, TOKENS, extra)
    long = answers(model, params, padded, context(np.broadcast_to(SEGMENTS[1], (B, T))), TYPES)
    np.testing.assert_allclose(long['vocabulary'][:, :4], short['vocabulary'], rtol=5e-5, atol=5e-5)
    np.testing.assert_allclose(long['next_sentence'], short['next_sentence'], rtol=5e-5, atol=5e-5)


def test_a_token_is_of_the_first_type_by_default():
  model, params = make_encoder()
  np.testing.assert_array_equal(
    answers(model, params, TOKENS, context(SEGMENTS), np.zeros_like(TYPES))['vocabulary'],
    answers(model, params, TOKENS, context(SEGMENTS), None)['vocabulary'],
  )


def test_the_mask_is_full_by_default():
  assert config().model.mask == 'full'
  assert resolve_config(complete({})).model.mask == 'causal'


@pytest.mark.parametrize(
  'fields, sentence',
  [
    (
      dict(objective='causal_lm'),
      "objective='causal_lm' trains 'decoder', not config.model.architecture='encoder'; use an "
      "objective such as 'masked_lm'",
    ),
    (
      dict(architecture='decoder', objective='causal_lm'),
      "token_types=2 needs an encoder, and .*'decoder' ignores it; leave it at 0",
    ),
    (
      dict(token_types=0),
      "packing='sentence_pairs' provides token types, and config.model.token_types=0 ignores",
    ),
    (dict(pooling='last'), "config.model.pooling='last' is unknown; .*first, first_two, mean"),
    (dict(pooling='none'), "config.model.pooling='none' is unknown"),
    (dict(output_transform='gelo'), "config.model.output_transform='gelo' is unknown; .*did you mean 'gelu'"),
    (dict(mixer='mamba', position='none'), "mixer='mamba' does not support mask='full'"),
  ],
)
def test_refusals(fields, sentence):
  with pytest.raises(ValueError, match=sentence):
    Experiment(config(**fields)).build_model(VOCAB)


@pytest.mark.parametrize(
  'objective, packing, sentence',
  [
    (
      'masked_lm(next_sentence=True)',
      'concat',
      "needs next and types besides the tokens of a row, and .*'concat' provides nothing; "
      "use 'sentence_pairs'",
    ),
    (
      'masked_lm',
      'sentence_pairs',
      "needs nothing besides .*'sentence_pairs' provides next and types; use 'concat'",
    ),
    ('seq2seq', 'concat', "objective='seq2seq' trains on pairs of source and target"),
  ],
)
def test_data_that_does_not_fit(objective, packing, sentence):
  with pytest.raises(ValueError, match=sentence):
    validate_documents(Experiment(config(objective, packing)))
