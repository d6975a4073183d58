"""Linear attention and the gated delta rule against their recurrences, over rows of documents and padding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tfm.masks
import tfm.mixers
import tfm.positions
from tests.reference import linear_attention as oracle
from tests.reference import rope
from tfm import spec
from tfm.conformance import tiny
from tfm.layers.initializer import normal
from tfm.masks.protocol import Mask
from tfm.mixers._feature_maps import Elu, Favor, orthogonal_rows
from tfm.mixers.gated_delta import DeltaRows, delta_rule
from tfm.mixers.protocol import Context, Memory, Mixer
from tfm.models import flops
from tfm.positions.protocol import Position


B, T, D, H, K, C = 4, 13, 16, 4, 2, 4
# Two documents side by side; padding around; documents interrupted by padding; one whole row.
SEGMENTS = np.array(
  [
    [1] * 5 + [2] * 8,
    [0] * 3 + [3] * 7 + [0] * 3,
    [1] * 3 + [0] * 2 + [1] * 2 + [0] + [2] * 3 + [0] + [2],
    [1] * 13,
  ]
)
POSITIONS = np.array(
  [
    [*range(5), *range(8)],
    [0] * 3 + [*range(7)] + [0] * 3,
    [0, 1, 2, 7, 7, 3, 4, 7, 0, 1, 2, 7, 3],
    [*range(13)],
  ]
)
REAL = SEGMENTS > 0
X = np.random.default_rng(0).standard_normal((B, T, D))
EXACT = dict(rtol=2e-5, atol=2e-5)


def make_mixer(text, position='none', mask='causal', **settings):
  fields = dict(
    width=D,
    heads=H,
    kv_heads=K,
    head_width=C,
    bias=False,
    dropout=0.0,
    initializer=normal(0.5),
    output_initializer=normal(0.5),
    dtype=jnp.float32,
  )
  position_factory = spec.factory(position, tfm.positions, Position, width=D, heads=H, head_width=C, length=T)
  mask = spec.build(mask, tfm.masks, Mask)
  return spec.factory(text, tfm.mixers, Mixer, position=position_factory, mask=mask, **fields | settings)()


def make_context(positions=POSITIONS, segments=SEGMENTS):
  return Context(jnp.asarray(positions, jnp.int32), jnp.asarray(segments, jnp.int32))


def draw_params(module, seed=1):
  """All parameters are random, so that no error hides behind a zero or a one."""
  draw = np.random.default_rng(seed)
  shapes = jax.eval_shape(
    lambda: module.init(jax.random.key(0), jnp.zeros((B, T, D)), None, make_context(), None)
  )
  return jax.tree.map(
    lambda box: (0.5 * draw.standard_normal(box.value.shape)).astype(np.float32),
    shapes['params'],
    is_leaf=lambda x: hasattr(x, 'names'),
  )


@functools.partial(jax.jit, static_argnums=0)
def apply(module, params, cache=None):
  return module.apply({'params': params}, jnp.asarray(X, jnp.float32), None, make_context(), cache)


@pytest.mark.parametrize('chunk', [5, *(pytest.param(chunk, marks=pytest.mark.slow) for chunk in (1, 4, 64))])
@pytest.mark.parametrize('mask', ['causal', 'full'])
@pytest.mark.parametrize('position', ['none', 'rope'])
def test_linear_equals_the_formula(position, mask, chunk):
  module = make_mixer(f'linear(chunk={chunk})', position, mask)
  params = draw_params(module)
  q, k, v = (np.einsum('btd,dhc->bthc', X, params[name]['kernel']) for name in 'qkv')
  q, k = oracle.elu(q), oracle.elu(k)
  rotated = [rope.rotate(y, POSITIONS) for y in (q, k)] if position == 'rope' else (q, k)
  y = oracle.attend(q, k, v, rotated, SEGMENTS, mask == 'causal')
  y = np.einsum('bthc,hcd->btd', y, params['out']['kernel'])
  np.testing.assert_allclose(np.asarray(apply(module, params)[0])[REAL], y[REAL], **EXACT)


@pytest.mark.parametrize(
  'text, phi',
  [
    ('elu', oracle.elu),
    ('relu', oracle.relu),
    ('softmax', oracle.softmax),
    ('cosformer(length=13)', lambda x: oracle.cosformer(x, POSITIONS, 13)),
    ('cosformer(length=5)', lambda x: oracle.cosformer(x, POSITIONS, 5)),
    ('favor(features=6, seed=3)', lambda x: oracle.favor(x, orthogonal_rows(6, C, 3))),
  ],
)
def test_feature_maps(text, phi):
  module = make_mixer(f'linear({text!r}, chunk=4)')
  params = draw_params(module)
  q, k, v = (np.einsum('btd,dhc->bthc', X, params[name]['kernel']) for name in 'qkv')
  q, k = phi(q), phi(k)
  if 'favor' in text:
    q = q / q.max(-1, keepdims=True) / 6**0.5  # y is the same, but for the 1e-6 of its denominator
  y = oracle.attend(q, k, v, (q, k), SEGMENTS)
  y = np.einsum('bthc,hcd->btd', y, params['out']['kernel'])
  np.testing.assert_allclose(np.asarray(apply(module, params)[0])[REAL], y[REAL], **EXACT)


def test_elu_is_not_zero_far_below_zero():
  """elu(x) + 1, computed directly, is 0 there in float32, and a row of such keys would be divided by 0."""
  y = Elu()(jnp.float32(-40.0), None, is_query=True)
  np.testing.assert_allclose(y, np.exp(-40.0), rtol=1e-6)


def test_favor_approximates_softmax():
  """The error falls with the root of the number of features; rows are orthogonal in blocks of C."""
  draw = np.random.default_rng(0)
  q, k = 0.5 * draw.standard_normal((2, 1, 50, 1, C))
  expected = oracle.softmax(q[0, :, 0] @ k[0, :, 0].T / np.sqrt(C))

  def error(features):
    """The mean over four draws of the random rows."""
    errors = []
    for seed in range(4):
      phi = Favor(features, seed)
      q_, k_ = (np.asarray(phi(jnp.asarray(x, jnp.float32), None, x is q))[0, :, 0] for x in (q, k))
      weights = q_ @ k_.T
      errors.append(np.abs(weights / weights.sum(-1, keepdims=True) - expected).mean() / expected.mean())
    return np.mean(errors)

  few, many = error(16), error(16 * 256)
  assert few / 32 < many < few / 6 and many < 0.03
  rows = orthogonal_rows(2 * C + 1, C, seed=0)
  products = rows @ rows.T
  for block in (products[:C, :C], products[C : 2 * C, C : 2 * C]):
    np.testing.assert_allclose(block, np.diag(np.diag(block)), atol=1e-5)
  lengths = np.linalg.norm(orthogonal_rows(4000, C, seed=0), axis=-1)
  np.testing.assert_allclose((lengths**2).mean(), C, rtol=0.05)


@pytest.mark.parametrize('text', ['linear("relu")', 'linear("relu", chunk=4)'])
def test_query_without_keys_has_finite_gradients(text):
  module = make_mixer(text)
  params = draw_params(module)
  params['k']['kernel'] *= 0

  def loss(params):
    return (apply(module, params)[0] ** 2).sum()

  y, gradient = jax.value_and_grad(loss)(params)
  assert y == 0 and all(np.isfinite(g).all() for g in jax.tree.leaves(gradient))


def draw_inputs(rate=1.0, seed=0):
  """q, k, v, log α and β in float64; keys have norm 1, and padding has α = 1, β = 0."""
  draw = np.random.default_rng(seed)
  q, k, v = (draw.standard_normal((B, T, heads, C)) for heads in (K, K, H))
  log_alpha, beta = -rate * draw.exponential(size=(B, T, H)), draw.uniform(size=(B, T, H))
  k = k / np.sqrt((k * k).sum(-1, keepdims=True))
  return q, k, v, log_alpha * REAL[..., None], beta * REAL[..., None]


def find_first_tokens():
  """[B T]: whether a token begins a document."""
  return np.array([[s != 0 and not (row[:t] == s).any() for t, s in enumerate(row)] for row in SEGMENTS])


def run_delta_rule(arrays, chunk):
  q, k, v, log_alpha, beta = (jnp.asarray(x, jnp.float32) for x in arrays)
  rows = DeltaRows(q, k, v, log_alpha, beta, jnp.asarray(find_first_tokens()))
  return jax.jit(delta_rule, static_argnums=2)(rows, jnp.zeros((B, H, C, C)), chunk)


@pytest.mark.parametrize('rate', [0.01, 1.0, 200.0])
@pytest.mark.parametrize('chunk', [4, 5, *(pytest.param(chunk, marks=pytest.mark.slow) for chunk in (1, 64))])
def test_chunked_delta_rule_equals_the_recurrence(chunk, rate):
  q, k, v, log_alpha, beta = arrays = draw_inputs(rate)
  y, state = run_delta_rule(arrays, chunk)
  expected, last = oracle.delta_rule(q, k, v, np.exp(log_alpha), beta, SEGMENTS)
  np.testing.assert_allclose(np.asarray(y)[REAL], expected[REAL], **EXACT)
  np.testing.assert_allclose(np.asarray(state).swapaxes(-1, -2), last, **EXACT)


def test_repeated_key():
  """The hardest system: with β = 1 and α = 1 each token replaces the value of the one before."""
  q, k, v, log_alpha, beta = draw_inputs()
  k[:] = q[:] = k[0, 0, 0]
  y, _ = run_delta_rule((q, k, v, 0 * log_alpha, np.ones_like(beta) * REAL[..., None]), 64)
  np.testing.assert_allclose(np.asarray(y)[REAL], v[REAL], **EXACT)


def test_strong_decay_keeps_the_digits_of_weak_decays():
  """Σ log α from the start of a chunk would be so large that weak decays would be rounded away."""
  q, k, v, log_alpha, beta = draw_inputs(0.01)
  log_alpha[:, 2] = -1e5 * REAL[:, 2, None]
  y, _ = run_delta_rule((q, k, v, log_alpha, beta), 64)
  expected, _ = oracle.delta_rule(q, k, v, np.exp(log_alpha), beta, SEGMENTS)
  np.testing.assert_allclose(np.asarray(y)[REAL], expected[REAL], **EXACT)


@pytest.mark.slow
def test_delta_rule_gradients_equal_those_of_the_recurrence():
  arrays = draw_inputs()
  g = np.random.default_rng(5).standard_normal((B, T, H, C)) * REAL[..., None, None]

  def loss(*arrays):
    return (run_delta_rule(arrays, 5)[0] * g).sum()

  gradients = jax.grad(loss, range(5))(*(jnp.asarray(x, jnp.float32) for x in arrays))

  def exact(*arrays):
    q, k, v, log_alpha, beta = arrays
    return (oracle.delta_rule(q, k, v, np.exp(log_alpha), beta, SEGMENTS)[0] * g).sum()

  draw = np.random.default_rng(6)
  for i, gradient in enumerate(gradients):
    direction = draw.standard_normal(gradient.shape) * REAL.reshape(B, T, *(1,) * (gradient.ndim - 2))
    up, down = (
      exact(*(x + sign * 1e-5 * direction if j == i else x for j, x in enumerate(arrays))) for sign in (1, -1)
    )
    np.testing.assert_allclose((np.asarray(gradient) * direction).sum(), (up - down) / 2e-5, rtol=1e-4)


@pytest.mark.parametrize(
  'text, kv_heads',
  [('gated_delta', 4), ('gated_delta(chunk=4)', 2), ('gated_delta(2, 5)', 1), ('gated_delta(taps=1)', 2)],
)
def test_gated_delta_equals_the_layer(text, kv_heads):
  module = make_mixer(text, kv_heads=kv_heads)
  params = draw_params(module)
  y = oracle.gated_delta(jax.tree.map(np.float64, params), X, SEGMENTS)
  np.testing.assert_allclose(np.asarray(apply(module, params)[0])[REAL], y[REAL], **EXACT)


@pytest.mark.parametrize('text', ['linear', 'gated_delta'])
def test_state_has_a_fixed_size_and_is_float32(text):
  module = make_mixer(text, dtype=jnp.bfloat16)
  params = draw_params(module)
  short, long = (jax.eval_shape(lambda: module.init_cache(B, length)) for length in (5, 500))
  assert short == long and short.state.dtype == jnp.float32 and short.state.shape[-2:] == (C, C)
  y, cache = apply(module, params, module.init_cache(B, T))
  assert y.dtype == jnp.bfloat16 and cache.state.dtype == jnp.float32
  np.testing.assert_array_equal(cache.segment, [2, 3, 2, 1])


def test_flops_of_linear_attention_do_not_depend_on_the_length():
  """Products within a chunk, into the state and from it, for numerator and denominator."""
  for length, chunk in ((16, 4), (64, 4), (64, 16)):
    model = tiny.decoder(
      length, layers=1, width=D, heads=H, kv_heads=K, head_width=C, mixer=f'linear(chunk={chunk})'
    )
    projections = 2 * D * C * (2 * H + 2 * K)
    sums = sum(2 * chunk * H * (C + width) + 2 * C * width * (K + H) for width in (C, 1))
    assert flops.per_token(model, length).kinds['mixer'] == pytest.approx(projections + sums)


@pytest.mark.slow
def test_flops_of_the_delta_rule():
  """Products within a chunk, its triangular system for v and k, and products with the state.

  Each half of a system's inverse is multiplied twice: 2 · 2 s³ for each of the I / 2s pairs of halves of s
  rows.
  """
  for length, chunk in ((16, 4), (64, 4), (64, 16)):
    model = tiny.decoder(
      length,
      layers=1,
      width=D,
      heads=H,
      kv_heads=K,
      head_width=C,
      position='none',
      mixer=f'gated_delta(chunk={chunk})',
    )
    projections = 2 * D * (C * (3 * H + 2 * K) + 2 * H)
    inverse = sum(2 * s**2 for s in (1, 2, 4, 8) if s < chunk) * H
    rule = 2 * chunk * C * (2 * K + H) + inverse + 2 * chunk * 2 * C * H + 3 * 2 * C * C * H
    assert flops.per_token(model, length).kinds['mixer'] == pytest.approx(projections + rule)


@pytest.mark.parametrize(
  'text, settings, message',
  [
    ('linear(feature_map="cosine")', {}, "'cosine' names 'cosine', .* known: elu, relu, softmax"),
    ('linear(feature_map="cosformer")', {}, "'cosformer' leaves out 'length'"),
    ('linear(feature_map="favor(features=0)")', {}, 'features=0 must be at least 1'),
    ('linear(feature_map="favor(features=7)")', dict(position='rope'), 'the head width is 7'),
    ('linear(chunk=0)', {}, r'chunk=0 must be at least 1'),
    ('linear', dict(dropout=0.1), r'dropout\.attention=0\.1 drops mixing weights'),
    ('gated_delta(taps=0)', {}, r'taps=0 must be at least 1'),
    ('gated_delta(chunk=-1)', {}, r'chunk=-1 must be at least 1'),
    ('gated_delta', dict(dropout=0.1), r'dropout\.attention=0\.1 drops mixing weights'),
  ],
)
def test_invalid_settings(text, settings, message):
  with pytest.raises(ValueError, match=message):
    make_mixer(text, **settings)


@pytest.mark.parametrize('text', ['linear', 'gated_delta'])
def test_rejects_cross_attention(text):
  module, x = make_mixer(text), jnp.zeros((B, T, D))
  with pytest.raises(ValueError, match=f"mixer='{text}' does not support cross-attention"):
    module.init(jax.random.key(0), x, Memory(x, make_context()), make_context(), None)


def test_rejects_a_cache_under_a_noncausal_mask():
  module, causal = make_mixer('linear', mask='full'), make_mixer('linear')
  with pytest.raises(ValueError, match="mixer='linear' cannot decode under a noncausal mask"):
    module.init_cache(B, T)
  with pytest.raises(ValueError, match="mixer='linear' cannot decode under a noncausal mask"):
    apply(module, draw_params(module), causal.init_cache(B, T))


@pytest.mark.parametrize(
  'model, message',
  [
    (dict(mixer='linear', mask='window(3)'), r"does not support mask='window\(3\)'; use 'causal' or 'full'"),
    (dict(mixer='gated_delta', mask='full', position='none'), r"does not support mask='full'; use 'causal'"),
    (dict(mixer='gated_delta', position='rope'), r'does not support the rotate'),
  ],
)
def test_rejects_unsupported_masks_and_positions(model, message):
  with pytest.raises(ValueError, match=message):
    tiny.decoder(causal=False, **model)
