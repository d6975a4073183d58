"""The decoder: its output, its vocabulary, its dropout, its positions, its types."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.conformance.tiny import LENGTH, VOCAB, boxed, decoder, parameters
from tfm.mixers.protocol import Context


TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, VOCAB, (2, LENGTH)))


def apply(model, params, method=None, tokens=TOKENS, train=False, key=None):
  context = Context.contiguous(tokens, train)

  def run(p, key):
    rngs = {} if key is None else {'dropout': key}
    return model.apply({'params': p}, tokens, context, method=method, rngs=rngs)[0]

  return np.asarray(jax.jit(run)(params, key))


class TestOutput:
  @pytest.mark.parametrize('tied', [True, False])
  def test_logits_read_the_table_or_a_kernel_of_their_own(self, tied):
    model = decoder(tie_embeddings=tied)
    params = parameters(model)
    assert ('output' in params) != tied
    matrix = params['embedding']['table'].T if tied else params['output']['kernel']
    features = apply(model, params, 'features')
    assert features.shape == (2, LENGTH, 16)
    np.testing.assert_allclose(apply(model, params), (features @ matrix)[..., :VOCAB], rtol=1e-5, atol=1e-5)

  def test_rows_are_rounded_up_and_are_no_tokens(self):
    model = decoder(vocab=29, vocab_multiple=16)
    params = parameters(model)
    assert params['embedding']['table'].shape == (32, 16) and params['output']['kernel'].shape == (16, 32)
    assert apply(model, params).shape == (2, LENGTH, 29)
    assert decoder(vocab=32, vocab_multiple=16).rows == 32 and decoder(vocab=33, vocab_multiple=16).rows == 48

  def test_rounding_changes_no_logits(self):
    model, exact = (
      decoder(vocab_multiple=16, tie_embeddings=True),
      decoder(vocab_multiple=1, tie_embeddings=True),
    )
    params = parameters(model)
    cut = params | {'embedding': {'table': params['embedding']['table'][:VOCAB]}}
    np.testing.assert_allclose(apply(model, params), apply(exact, cut), rtol=1e-5, atol=1e-5)

  @pytest.mark.parametrize('tied', [True, False])
  def test_a_narrow_table_is_a_product(self, tied):
    """Of the table and what lifts it, on the way in; of what goes down and the table, on the way out."""
    model, plain = decoder(tie_embeddings=tied, embedding_width=6), decoder(tie_embeddings=False)
    params = parameters(model)
    embedding = params['embedding']
    assert {name: jax.tree.leaves(x)[0].shape for name, x in embedding.items()} == dict(
      table=(32, 6), project_in=(6, 16)
    ) | (dict(project_out=(16, 6)) if tied else {})
    product = params | {'embedding': {'table': embedding['table'] @ embedding['project_in']['kernel']}}
    if tied:
      product['output'] = {'kernel': embedding['project_out']['kernel'] @ embedding['table'].T}
    np.testing.assert_allclose(apply(model, params), apply(plain, product), rtol=1e-4, atol=1e-4)
    assert set(boxed(decoder(tie_embeddings=tied, embedding_width=16))['embedding']) == {
      'table'
    }  # that is the width

  @pytest.mark.parametrize('tied, bias', [(True, True), (False, False)])
  def test_a_soft_cap_bends_the_logits(self, tied, bias):
    plain, capped = (
      decoder(tie_embeddings=tied, output_bias=bias, output_soft_cap=cap) for cap in (0.0, 1.5)
    )
    params = parameters(plain)
    logits, bent = apply(plain, params), apply(capped, params)
    assert np.abs(logits).max() > 3
    np.testing.assert_allclose(
      bent, 1.5 * np.tanh(np.asarray(logits, np.float64) / 1.5), rtol=1e-5, atol=1e-5
    )

  @pytest.mark.parametrize(
    'placement, norm', [('pre', True), ('sandwich', True), ('res_post', True), ('post', False)]
  )
  def test_the_last_norm_stands_once(self, placement, norm):
    assert ('norm' in boxed(decoder(norm_placement=placement))) == norm

  def test_the_last_block_decides_about_the_last_norm(self):
    blocks = dict(a=dict(norm_placement='pre'), b=dict(norm_placement='post'))
    assert 'norm' in boxed(decoder(layers=3, pattern=('a', 'b'), blocks=blocks))
    assert 'norm' not in boxed(decoder(layers=2, pattern=('a', 'b'), blocks=blocks))


class TestTypes:
  def test_bfloat16_computes_in_it_and_keeps_the_rest_in_float32(self):
    model, exact = decoder(dtype='bfloat16'), decoder()
    params = parameters(model, scale=0.2)
    assert {x.dtype for x in jax.tree.leaves(nn.unbox(boxed(model)))} == {jnp.dtype('float32')}
    assert apply(model, params, 'features').dtype == jnp.bfloat16
    logits = apply(model, params)
    assert logits.dtype == np.float32
    expected = apply(exact, params)
    assert 0 < np.abs(logits - expected).max() < 0.05 * np.abs(expected).max()

  def test_caches_are_of_the_compute_type(self):
    caches = decoder(dtype='bfloat16').init_caches(2, 5)
    assert {x.dtype for x in jax.tree.leaves(caches)} == {jnp.dtype('bfloat16'), jnp.dtype('int32')}


class TestBias:
  @pytest.mark.parametrize('bias', [True, False])
  @pytest.mark.parametrize('norm', ['layernorm', 'rmsnorm'])
  def test_everywhere_or_nowhere(self, bias, norm):
    paths = [
      [k.key for k in path]
      for path, _ in jax.tree.leaves_with_path(
        boxed(decoder(bias=bias, norm=norm)), is_leaf=lambda x: hasattr(x, 'names')
      )
    ]
    with_bias = {path[-2] for path in paths if path[-1] == 'bias'}
    norms = {'norm', 'mixer_norm', 'feed_forward_norm'} if norm == 'layernorm' else set()
    assert with_bias == ({'q', 'k', 'v', 'out', 'up', 'down'} | norms if bias else set())

  @pytest.mark.parametrize('bias', [True, False])
  def test_of_norms_as_their_specs_set(self, bias):
    model = decoder(norm=f'layernorm(1e-5, bias={not bias})', mixer='softmax(qk_norm="layernorm")', bias=bias)
    paths = [
      [k.key for k in path]
      for path, _ in jax.tree.leaves_with_path(boxed(model), is_leaf=lambda x: hasattr(x, 'names'))
    ]
    others = {'q', 'k', 'v', 'out', 'up', 'down', 'q_norm', 'k_norm'}
    norms = {'norm', 'mixer_norm', 'feed_forward_norm'}
    assert {path[-2] for path in paths if path[-1] == 'bias'} == (others if bias else norms)

  @pytest.mark.parametrize('bias', [True, False])
  @pytest.mark.parametrize('biases', ['qkv', 'o', ''])
  def test_of_attention_as_its_spec_sets(self, bias, biases):
    block = boxed(decoder(mixer=f'softmax(biases={biases!r})', bias=bias))['stack']['layers']['block_0']
    assert {name[0] for name in ('q', 'k', 'v', 'out') if 'bias' in block['mixer'][name]} == set(biases)
    assert all(('bias' in block['feed_forward'][name]) == bias for name in ('up', 'down'))
    assert ('bias' in block['mixer_norm']) == bias


class TestPositions:
  def test_each_scheme_in_use_embeds_once(self):
    # Two layers of each kind, one table; rope embeds nothing.
    blocks = dict(a=dict(position='learned'), b=dict(position='rope'), c=dict(position='learned'))
    params = boxed(decoder(layers=3, pattern=('a', 'b', 'c'), blocks=blocks))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(nn.unbox(params))]
    tables = [path for path in paths if path.endswith("['table']") and 'embedding' not in path]
    assert tables == ["['position_0']['table']"]

  def test_a_block_turns_its_heads_by_its_own_scheme(self):
    blocks = dict(a=dict(position='rope(theta=100)'), b=dict(position='rope(theta=10)'))
    params = parameters(decoder(layers=2))
    mixed = decoder(layers=2, pattern=('a', 'b'), blocks=blocks, scan=False)
    split = params | {
      'stack': {
        'layers_0': {
          f'block_{i}': jax.tree.map(lambda x: x[i], params['stack']['layers']['block_0']) for i in range(2)
        }
      }
    }
    logits = apply(mixed, split)
    assert np.abs(logits - apply(decoder(layers=2, position='rope(theta=100)'), params)).max() > 1e-3
    assert np.abs(logits - apply(decoder(layers=2, position='rope(theta=10)'), params)).max() > 1e-3


class TestBlocksWithoutFeedForward:
  def test_they_have_a_mixer_and_its_norm(self):
    params = boxed(decoder(feed_forward='none', mixer='mamba', position='none'))
    assert set(params['stack']['layers']['block_0']) == {'mixer', 'mixer_norm'}

  def test_beside_others(self):
    blocks = dict(a=dict(feed_forward='none'), b=dict())
    block = boxed(decoder(layers=2, pattern=('a', 'b'), blocks=blocks))['stack']['layers']
    assert set(block['block_0']) == {'mixer', 'mixer_norm'}
    assert block['block_1']['feed_forward']['up']['kernel'].value.shape == (1, 16, 32)

  def test_others_beside_them(self):
    blocks = dict(a=dict(), b=dict(feed_forward='swiglu'))
    block = boxed(decoder(layers=2, feed_forward='none', pattern=('a', 'b'), blocks=blocks))['stack'][
      'layers'
    ]
    assert set(block['block_0']) == {'mixer', 'mixer_norm'}
    assert block['block_1']['feed_forward']['gate']['kernel'].value.shape == (1, 16, 64)


class TestDropout:
  @pytest.mark.slow
  def test_the_embedding_drops_its_share(self):
    # Without blocks of any effect, features before the norm are the embedding.
    model = decoder(layers=1, dropout=dict(embedding=0.25), position='none', norm_placement='post', width=64)
    params = jax.tree.map(jnp.zeros_like, parameters(model))
    params['embedding']['table'] = jnp.ones_like(params['embedding']['table'])
    params['stack']['layers']['block_0']['mixer_norm']['bias'] += 1.0
    tokens = jnp.zeros((8, LENGTH), jnp.int32)
    seen = []

    def spy(next_function, args, kwargs, context):
      y = next_function(*args, **kwargs)
      if context.module.name == 'drop':
        seen.append(y)
      return y

    with nn.intercept_methods(spy):
      for train in (True, False):
        model.apply(
          {'params': params}, tokens, Context.contiguous(tokens, train), rngs={'dropout': jax.random.key(0)}
        )
    dropped, stored = (np.asarray(x) for x in seen)
    assert abs((dropped == 0).mean() - 0.25) < 0.03 and np.allclose(dropped[dropped > 0], 1 / 0.75)
    assert (stored == 1).all()

  @pytest.mark.sampled(1)
  @pytest.mark.parametrize('place', ['embedding', 'attention', 'residual'])
  def test_each_place_is_on_in_training_and_off_at_evaluation(self, place):
    plain, model = decoder(), decoder(dropout={place: 0.5})
    params = parameters(model)
    expected = apply(plain, params)
    np.testing.assert_array_equal(apply(model, params), expected)
    a, again, b = (apply(model, params, train=True, key=jax.random.key(i)) for i in (0, 0, 1))
    np.testing.assert_array_equal(a, again)
    assert (a != expected).any() and (a != b).any()

  def test_no_rate_asks_for_no_randomness(self):
    model = decoder()
    params = parameters(model)
    np.testing.assert_array_equal(apply(model, params, train=True), apply(model, params))

  def test_attention_drops_the_weights_on_average_to_nothing(self):
    # With values of one everywhere, an output channel is the sum of the weights that are left.
    model = decoder(layers=1, dropout=dict(attention=0.3))
    mixer = model.stack().pattern[0]().mixer()
    x = jnp.ones((64, LENGTH, 16))
    context = Context.contiguous(x[..., 0], True)
    shapes = nn.unbox(
      jax.eval_shape(lambda: mixer.init(jax.random.key(0), x, None, Context.contiguous(x[..., 0]), None))
    )
    params = jax.tree.map(lambda x: jnp.zeros(x.shape), shapes['params'])
    params['v']['bias'] += 1.0
    params['out']['kernel'] = params['out']['kernel'].at[0, 0, 0].set(1.0)

    def run(key):
      return mixer.apply({'params': params}, x, None, context, None, rngs={'dropout': key})[0]

    y = jax.jit(run)(jax.random.key(0))
    sums = np.asarray(y)[..., 0]
    assert abs(sums.mean() - 1) < 0.05 and sums[:, -1].std() > 0.1
    # A first token sees itself alone: all or nothing.
    assert set(np.round(np.unique(sums[:, 0]), 4)) <= {0.0, np.float32(1.4286)}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  'model',
  [
    dict(residual='parallel_one_norm'),
    dict(feed_forward='none', mixer='mamba', position='none'),
    dict(embedding_width=6, tie_embeddings=True, output_soft_cap=2.0),
  ],
  ids=str,
)
def test_what_is_read_from_a_cache_is_what_is_read_at_once(model):
  model = decoder(**model)
  params, context = parameters(model), Context.contiguous(TOKENS)
  whole, caches, pieces = apply(model, params), model.init_caches(2, LENGTH), []
  step = jax.jit(
    lambda params, tokens, context, caches: model.apply({'params': params}, tokens, context, caches)
  )
  for start, end in ((0, 7), (7, 8), (8, LENGTH)):
    here = Context(context.positions[:, start:end], context.segments[:, start:end])
    logits, caches = step(params, TOKENS[:, start:end], here, caches)
    pieces.append(logits)
  np.testing.assert_allclose(np.concatenate(pieces, 1), whole, rtol=2e-5, atol=2e-5)


def test_init_caches_touches_no_parameters_and_counts_from_zero():
  caches = decoder(layers=3).init_caches(4, 7)
  shapes = {jnp.shape(x) for x in jax.tree.leaves(caches)}
  assert shapes == {(3, 4, 2, 7, 4), (3, 4, 7), (3,)} and not any(x.any() for x in jax.tree.leaves(caches))


def test_a_norm_after_the_embedding_forgets_its_size():
  """Ten times the table gives the same logits, and without the norm others."""
  for norm, same in ((True, True), (False, False)):
    model = decoder(embedding_norm=norm, position='none', tie_embeddings=False)
    params = parameters(model)
    larger = params | {'embedding': {'table': 10 * params['embedding']['table']}}
    assert ('embedding_norm' in params) == norm
    assert np.allclose(apply(model, params), apply(model, larger), rtol=1e-3, atol=1e-3) == same
