"""LSTM and GRU against their formulas: documents, padding within them, and what a cache holds."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tfm.mixers
from tests.reference import recurrent
from tfm import spec
from tfm.layers.initializer import normal
from tfm.mixers.protocol import Context, Memory, Mixer


D, F = 6, 5
DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((3, 12, D))
# Padding left, right, between documents and within one; one row of padding only.
SEGMENTS = np.array([[0, 1, 1, 1, 0, 2, 2, 2, 2, 2, 0, 0], [1, 1, 0, 0, 1, 1, 1, 0, 1, 3, 3, 3], [0] * 12])
REAL = SEGMENTS > 0
GATES = {'lstm': 4, 'gru': 3}


def make_mixer(cell, bias=True, dtype=jnp.float32, dropout=0.0, hidden=F):
  return spec.factory(
    f'recurrent({cell!r}, hidden={hidden})',
    tfm.mixers,
    Mixer,
    width=D,
    heads=2,
    kv_heads=2,
    head_width=3,
    bias=bias,
    dropout=dropout,
    initializer=normal(1.0),
    output_initializer=normal(1.0),
    dtype=dtype,
  )()


def make_context(part=slice(None)):
  segments = jnp.asarray(SEGMENTS[:, part], jnp.int32)
  return Context(jnp.zeros_like(segments), segments)  # the mixer reads no positions


def draw_params(module):
  inputs = jnp.asarray(X, jnp.float32), None, make_context(), None
  shapes = nn.unbox(jax.eval_shape(module.init, jax.random.key(0), *inputs))['params']
  return jax.tree.map(lambda p: 0.7 * DRAW.standard_normal(p.shape), shapes)


def run(module, params, part=slice(None), cache=None):
  params = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), params)
  return jax.jit(module.apply)(
    {'params': params}, jnp.asarray(X[:, part], module.dtype), None, make_context(part), cache
  )


def formula(cell, params):
  """y of the oracle, from the mixer's own parameters."""
  W, U = (np.swapaxes(kernel, 1, 2) for kernel in (params['input']['kernel'], params['recurrent']))
  b = params['input']['bias'].T if 'bias' in params['input'] else np.zeros((GATES[cell], F))
  extra = dict(candidate_bias=params['recurrent_bias'][:, 0]) if 'recurrent_bias' in params else {}
  h = getattr(recurrent, cell)(X, W, U, b, SEGMENTS, **extra)
  return h @ params['out']['kernel'] + params['out'].get('bias', 0)


@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize('cell', GATES)
def test_formula(cell, bias):
  module = make_mixer(cell, bias)
  params = draw_params(module)
  names = {'input', 'recurrent', 'out'} | ({'recurrent_bias'} if bias and cell == 'gru' else set())
  assert set(params) == names
  y, cache = run(module, params)
  assert cache is None and np.isfinite(y).all()
  np.testing.assert_allclose(y[REAL], formula(cell, params)[REAL], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('cell', GATES)
def test_gradients_equal_finite_differences(cell):
  module = make_mixer(cell)
  params = draw_params(module)
  weight = np.where(REAL[..., None], DRAW.standard_normal(X.shape), 0)
  gradients = jax.grad(lambda params: (run(module, params)[0] * weight).sum())(
    jax.tree.map(jnp.float32, params)
  )
  leaves, tree = jax.tree.flatten(params)
  for i, gradient in enumerate(jax.tree.leaves(gradients)):
    direction = DRAW.standard_normal(gradient.shape)
    shifted_params = [
      tree.unflatten([p + sign * 1e-5 * direction if j == i else p for j, p in enumerate(leaves)])
      for sign in (1, -1)
    ]
    slope = np.subtract(*((formula(cell, params) * weight).sum() for params in shifted_params)) / 2e-5
    np.testing.assert_allclose((gradient * direction).sum(), slope, rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize('ends', [(5, 12), (1, 2, 3, 9, 12), tuple(range(1, 13))], ids=str)
@pytest.mark.parametrize('cell', GATES)
def test_pieces_through_a_cache(cell, ends):
  module = make_mixer(cell)
  params = draw_params(module)
  cache, outputs = module.init_cache(len(X), 12), []
  for start, stop in zip((0, *ends), ends):
    y, cache = run(module, params, slice(start, stop), cache)
    outputs.append(y)
  np.testing.assert_allclose(
    np.concatenate(outputs, 1)[REAL], formula(cell, params)[REAL], rtol=1e-5, atol=1e-5
  )


@pytest.mark.parametrize('cell', GATES)
def test_padding_does_not_change_the_state(cell):
  module = make_mixer(cell)
  params = draw_params(module)
  _, before = run(module, params, slice(0, 10), module.init_cache(len(X), 12))
  _, after = run(module, params, slice(10, 12), before)
  for a, b in zip(after.state, before.state):
    np.testing.assert_array_equal(a[0], b[0])
    np.testing.assert_array_equal(b[2], 0)
    assert (np.asarray(a[1]) != np.asarray(b[1])).all()
  np.testing.assert_array_equal(after.segment, [2, 3, 0])


@pytest.mark.parametrize('cell', GATES)
def test_state_is_float32_under_bfloat16(cell):
  module = make_mixer(cell, dtype=jnp.bfloat16)
  params = draw_params(module)
  y, cache = run(module, params, slice(None), module.init_cache(len(X), 12))
  assert y.dtype == jnp.bfloat16 and {s.dtype for s in cache.state} == {jnp.dtype('float32')}
  # The state holds more digits than bfloat16.
  assert all((np.asarray(s.astype(jnp.bfloat16).astype(jnp.float32)) != s).any() for s in cache.state)
  np.testing.assert_allclose(y.astype(jnp.float32)[REAL], formula(cell, params)[REAL], atol=0.15)


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(cell='lstmm'), "cell='lstmm' is unknown; known: lstm, gru; did you mean 'lstm'"),
    (dict(cell='gru', hidden=0), 'hidden=0 must be at least 1'),
    (dict(cell='gru', dropout=0.1), 'dropout.attention=0.1 drops .* a recurrent network does not have'),
  ],
)
def test_invalid_settings(fields, message):
  with pytest.raises(ValueError, match=message):
    make_mixer(**fields)


def test_rejects_cross_attention():
  module = make_mixer('lstm')
  x = jnp.asarray(X, jnp.float32)
  with pytest.raises(ValueError, match="mixer='recurrent' does not support cross-attention"):
    module.apply({'params': draw_params(module)}, x, Memory(x, make_context()), make_context(), None)
