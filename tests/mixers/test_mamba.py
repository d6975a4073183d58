"""The state space mixers against the recurrences of their papers, over rows of documents and padding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tfm.mixers
from tests.reference import mamba as oracle
from tfm import spec
from tfm.conformance import tiny
from tfm.layers.initializer import normal
from tfm.mixers._state_space import find_document_starts, scan_chunks, segment_sums
from tfm.mixers.protocol import Context, Mixer
from tfm.models import flops


pytestmark = pytest.mark.slow
B, T, D = 4, 13, 8
# Two documents side by side; padding around; a document interrupted by padding; one whole row.
SEGMENTS = np.array(
  [[1] * 5 + [2] * 8, [0] * 3 + [3] * 7 + [0] * 3, [1, 1, 1, 0, 0, 1, 1, 0, 2, 2, 2, 0, 2], [1] * 13]
)
X = np.random.default_rng(0).standard_normal((B, T, D))
EXACT = dict(rtol=2e-5, atol=2e-5)


def make_mixer(text, **settings):
  fields = dict(
    width=D,
    heads=4,
    kv_heads=2,
    head_width=2,
    bias=False,
    dropout=0.0,
    initializer=normal(0.5),
    output_initializer=normal(0.5),
    dtype=jnp.float32,
  )
  return spec.factory(text, tfm.mixers, Mixer, **fields | settings)()


def make_context(segments, layout='arbitrary'):
  segments = jnp.asarray(segments, jnp.int32)
  return Context(jnp.zeros_like(segments), segments, layout=layout)


def draw_params(module, seed=1):
  """All parameters are random, so that no error hides behind a zero or a one."""
  draw = np.random.default_rng(seed)
  boxes = jax.eval_shape(
    lambda: module.init(jax.random.key(0), jnp.zeros((1, 2, D)), None, make_context([[1, 1]]), None)
  )

  def draw_param(box):
    return (0.5 * draw.standard_normal(box.value.shape)).astype(np.float32)

  return jax.tree.map(draw_param, boxes['params'], is_leaf=lambda x: hasattr(x, 'names'))


def apply(module, params, x=X, segments=SEGMENTS, cache=None, layout='arbitrary'):
  return run(module, params, jnp.asarray(x, module.dtype), make_context(segments, layout), cache)


@functools.partial(jax.jit, static_argnums=0)
def run(module, params, x, context, cache):
  return module.apply({'params': params}, x, None, context, cache)


def compute_gradients(module, params):
  """Gradients of the standard deviation of y at real tokens, with respect to the parameters and x."""

  def compute_deviation(params, x):
    y, _ = module.apply({'params': params}, x, None, make_context(SEGMENTS), None)
    return jnp.where(SEGMENTS[..., None] > 0, y, 0).std()

  run = jax.jit(jax.grad(compute_deviation, argnums=(0, 1)))
  return run(params, jnp.asarray(X, jnp.float32))


def compute_expected(formula, params, x=X, segments=SEGMENTS):
  """The formula on each document alone; zeros for padding."""
  y = np.zeros(x.shape)
  for row in range(len(x)):
    for document in set(segments[row]) - {0}:
      part = segments[row] == document
      y[row, part] = formula(params, x[row, part])
  return y


SETTINGS = [
  ('mamba', oracle.mamba, {}),
  ('mamba(state=3, expand=3, taps=2, rank=5, chunk=4)', oracle.mamba, dict(bias=True)),
  ('mamba(taps=1, chunk=1)', oracle.mamba, {}),
  ('mamba(convolution_bias=False)', oracle.mamba, dict(bias=True)),
  ('mamba2(state=5)', oracle.mamba2, {}),
  ('mamba2(state=3, expand=3, taps=2, chunk=4)', oracle.mamba2, dict(bias=True)),
  ('mamba2(state=5, chunk=1, epsilon=0.1)', lambda p, x: oracle.mamba2(p, x, 0.1), dict(kv_heads=1)),
  ('mamba2(state=5, taps=1, chunk=3)', oracle.mamba2, dict(kv_heads=4, head_width=5)),
  ('mamba2(state=5, convolution_bias=False)', oracle.mamba2, dict(bias=True)),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize('text, formula, settings', SETTINGS)
def test_equals_the_recurrence(text, formula, settings):
  module = make_mixer(text, **settings)
  params = draw_params(module)
  y, cache = apply(module, params)
  real = SEGMENTS[..., None] > 0
  np.testing.assert_allclose(np.where(real, y, 0), compute_expected(formula, params), **EXACT)
  assert cache is None and np.isfinite(y).all()


@pytest.mark.sampled(4)
@pytest.mark.parametrize('pieces', [(6, 1, 6), (1,) * 13], ids=str)
@pytest.mark.parametrize('text, formula, settings', SETTINGS)
def test_pieces_through_a_cache(text, formula, settings, pieces):
  """Including a document that padding interrupts, within a piece or between two."""
  module = make_mixer(text, **settings)
  params = draw_params(module)
  cache, outputs, start = module.init_cache(B, T), [], 0
  for piece in pieces:
    part = slice(start, start + piece)
    y, cache = apply(module, params, X[:, part], SEGMENTS[:, part], cache)
    outputs.append(y)
    start += piece
  real = SEGMENTS[..., None] > 0
  np.testing.assert_allclose(
    np.where(real, np.concatenate(outputs, 1), 0), compute_expected(formula, params), **EXACT
  )


@pytest.mark.parametrize('text', ['mamba', 'mamba2'])
def test_packed_layout_equals_arbitrary(text):
  module = make_mixer(text)
  params = draw_params(module)
  rows = [0, 1, 3]  # those whose documents are not interrupted
  real = SEGMENTS[rows, :, None] > 0
  arbitrary, packed = (
    apply(module, params, X[rows], SEGMENTS[rows], layout=layout)[0] for layout in ('arbitrary', 'packed')
  )
  # Sums with cancellation are exact to units in the last place of their largest terms.
  packed, arbitrary = np.where(real, packed, 0), np.where(real, arbitrary, 0)
  np.testing.assert_allclose(packed, arbitrary, rtol=1e-6, atol=4 * np.spacing(np.abs(arbitrary).max()))


@pytest.mark.sampled(1)
@pytest.mark.parametrize('text', ['mamba(chunk={})', 'mamba2(chunk={})'])
def test_gradients_do_not_depend_on_the_chunk(text):
  params = draw_params(make_mixer(text.format(1)))
  one = compute_gradients(make_mixer(text.format(64)), params)
  for chunk in (1, 5):
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(b).max()),
      compute_gradients(make_mixer(text.format(chunk)), params),
      one,
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize('text', ['mamba', 'mamba2'])
def test_strong_decays_are_exact_and_have_finite_gradients(text):
  """Steps from 0 to hundreds: decays sum to thousands, and those of later tokens would overflow."""
  module = make_mixer(text)
  params = draw_params(module)
  name, matrix = ('dt_proj', params) if text == 'mamba' else ('kernel', params['dt'])
  matrix[name] = 200 * matrix[name]
  formula = getattr(oracle, text)
  y, _ = apply(module, params)
  size = np.abs(y).max()
  real = SEGMENTS[..., None] > 0
  np.testing.assert_allclose(np.where(real, y, 0) / size, compute_expected(formula, params) / size, **EXACT)
  assert all(np.isfinite(g).all() for g in jax.tree.leaves(compute_gradients(module, params)))


@pytest.mark.parametrize('text', ['mamba', 'mamba2'])
def test_bfloat16_has_float32_states(text):
  exact, module = make_mixer(text), make_mixer(text, dtype=jnp.bfloat16)
  params = draw_params(exact)
  y, cache = apply(module, params, cache=module.init_cache(B, T))
  assert y.dtype == jnp.bfloat16 and cache.state.dtype == jnp.float32
  y, full = np.asarray(y, np.float32), np.asarray(apply(exact, params)[0])
  real = SEGMENTS > 0
  assert np.abs(y - full)[real].max() < 0.05 * np.abs(full[real]).max()


def test_document_starts():
  first, segments = find_document_starts(jnp.asarray(SEGMENTS), jnp.asarray([1, 2, 0, 0]))
  starts = {(0, 5), (1, 3), (2, 0), (2, 8), (3, 0)}  # row 0 continues document 1, row 1 ends document 2
  assert set(zip(*map(lambda x: x.tolist(), np.nonzero(first)))) == starts
  assert segments.tolist() == [2, 3, 2, 1]
  assert find_document_starts(jnp.zeros((1, 3), int), jnp.asarray([7]))[1].tolist() == [7]


@pytest.mark.parametrize('chunk', [1, 4, 12, 13, 100])
def test_scan_chunks_carries_its_state(chunk):
  def step(sums, x):
    assert x.shape[1] <= chunk
    sums = sums[:, None] + jnp.cumsum(x, 1)
    return sums[:, -1], sums

  last, y = scan_chunks(step, jnp.zeros((B, D)), jnp.asarray(X, jnp.float32), chunk)
  np.testing.assert_allclose(y, np.cumsum(X, 1), rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(last, X.sum(1), rtol=1e-5, atol=1e-5)


def test_segment_sums_do_not_cancel():
  x = np.array([1e6, 0.1, 0.2, 0.3], np.float32)
  sums = segment_sums(jnp.asarray(x))
  for s in range(4):
    for t in range(s, 4):
      np.testing.assert_allclose(sums[t, s], x[s + 1 : t + 1].sum(dtype=np.float64), rtol=1e-6)


@pytest.mark.parametrize('text', ['mamba', 'mamba2'])
def test_published_initialization(text):
  module = make_mixer(text, width=64, heads=8, head_width=32)
  params = jax.jit(
    lambda: module.init(jax.random.key(0), jnp.zeros((1, 2, 64)), None, make_context([[1, 1]]), None)[
      'params'
    ]
  )()
  params = jax.tree.map(lambda box: np.asarray(box.value), params, is_leaf=lambda x: hasattr(x, 'names'))
  steps = np.logaddexp(0, params['dt_bias'])
  assert (steps > 0.99e-3).all() and (steps < 1.01e-1).all() and (params['D'] == 1).all()
  poles = np.exp(params['A_log'])
  if text == 'mamba':
    np.testing.assert_allclose(poles, np.tile(np.arange(1, 17), (128, 1)), rtol=1e-5)
    assert np.log(steps).mean() == pytest.approx(np.log(1e-2), abs=0.4)
    assert np.abs(params['dt_proj']).max() == pytest.approx(4**-0.5, rel=0.05)  # its rank is 64 / 16
  else:
    assert (poles >= 1).all() and (poles <= 16).all() and (params['scale'] == 1).all()


@pytest.mark.parametrize(
  'text, settings, message',
  [
    ('mamba(state=0)', {}, 'state=0 must be at least 1'),
    ('mamba(rank=-1)', {}, 'rank=-1 must be at least 1'),
    ('mamba2(chunk=0)', {}, 'chunk=0 must be at least 1'),
    ('mamba2(expand=0)', {}, 'expand=0 must be at least 1'),
    ('mamba', dict(dropout=0.1), 'dropout.attention=0.1 drops mixing weights'),
    ('mamba2', dict(dropout=0.1), 'dropout.attention=0.1 drops mixing weights'),
  ],
)
def test_invalid_settings(text, settings, message):
  with pytest.raises(ValueError, match=message):
    make_mixer(text, **settings)


@pytest.mark.parametrize('text', ['mamba', 'mamba2'])
def test_rejects_cross_attention(text):
  module = make_mixer(text)
  with pytest.raises(ValueError, match='does not support cross-attention'):
    module.init(jax.random.key(0), jnp.zeros((1, 2, D)), object(), make_context([[1, 1]]), None)


def test_flops():
  """Products of the scan, chunk by chunk, and of the projections."""
  width, length, heads, groups, channels, state, chunk = 16, 12, 8, 2, 4, 8, 4
  inner = heads * channels
  model = tiny.decoder(length, mixer=f'mamba2(state={state}, chunk={chunk})', position='none')
  projections = width * (2 * inner + 2 * groups * state + heads) + inner * width
  scan = groups * chunk * state + heads * chunk * channels + 2 * heads * channels * state
  assert flops.per_token(model, length).kinds['mixer'] == pytest.approx(2 * 2 * (projections + scan))
  model = tiny.decoder(length, mixer=f'mamba(state={state}, chunk={chunk}, rank=3)', position='none')
  projections = 3 * width * inner + inner * (2 * state + 3) + 3 * inner
  assert flops.per_token(model, length).kinds['mixer'] == pytest.approx(2 * 2 * (projections + inner * state))
