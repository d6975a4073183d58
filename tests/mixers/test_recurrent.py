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
# Padding left, right, between documents and within one; one row of nothing else.
SEGMENTS = np.array([[0, 1, 1, 1, 0, 2, 2, 2, 2, 2, 0, 0], [1, 1, 0, 0, 1, 1, 1, 0, 1, 3, 3, 3], [0] * 12])
REAL = SEGMENTS > 0
GATES = {'lstm': 4, 'gru': 3}


def mixer(cell, bias=True, dtype=jnp.float32, dropout=0.0, hidden=F):
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


def context(part=slice(None)):
  segments = jnp.asarray(SEGMENTS[:, part], jnp.int32)
  return Context(jnp.zeros_like(segments), segments)  # nobody asks for positions


def parameters(result):
  inputs = jnp.asarray(X, jnp.float32), None, context(), None
  shapes = nn.unbox(jax.eval_shape(result.init, jax.random.key(0), *inputs))['params']
  return jax.tree.map(lambda p: 0.7 * DRAW.standard_normal(p.shape), shapes)


def run(result, params, part=slice(None), cache=None):
  params = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), params)
  return jax.jit(result.apply)(
    {'params': params}, jnp.asarray(X[:, part], result.dtype), None, context(part), cache
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
  module = mixer(cell, bias)
  params = parameters(module)
  names = {'input', 'recurrent', 'out'} | ({'recurrent_bias'} if bias and cell == 'gru' else set())
  assert set(params) == names
  y, cache = run(module, params)
  assert cache is None and np.isfinite(y).all()
  np.testing.assert_allclose(y[REAL], formula(cell, params)[REAL], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('cell', GATES)
def test_gradients_are_the_formulas_differences(cell):
  module = mixer(cell)
  params = parameters(module)
  weight = np.where(REAL[..., None], DRAW.standard_normal(X.shape), 0)
  gradients = jax.grad(lambda params: (run(module, params)[0] * weight).sum())(
    jax.tree.map(jnp.float32, params)
  )
  leaves, tree = jax.tree.flatten(params)
  for i, gradient in enumerate(jax.tree.leaves(gradients)):
    way = DRAW.standard_normal(gradient.shape)
    ends = [
      tree.unflatten([p + sign * 1e-5 * way if j == i else p for j, p in enumerate(leaves)])
      for sign in (1, -1)
    ]
    slope = np.subtract(*((formula(cell, params) * weight).sum() for params in ends)) / 2e-5
    np.testing.assert_allclose((gradient * way).sum(), slope, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('cut', [(5, 12), (1, 2, 3, 9, 12), tuple(range(1, 13))], ids=str)
@pytest.mark.parametrize('cell', GATES)
def test_pieces_that_begin_and_end_anywhere(cell, cut):
  module = mixer(cell)
  params = parameters(module)
  cache, read = module.init_cache(len(X), 12), []
  for start, stop in zip((0, *cut), cut):
    y, cache = run(module, params, slice(start, stop), cache)
    read.append(y)
  np.testing.assert_allclose(np.concatenate(read, 1)[REAL], formula(cell, params)[REAL], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('cell', GATES)
def test_padding_leaves_the_state_as_it_was(cell):
  module = mixer(cell)
  params = parameters(module)
  _, before = run(module, params, slice(0, 10), module.init_cache(len(X), 12))
  _, after = run(module, params, slice(10, 12), before)
  for a, b in zip(after.state, before.state):
    np.testing.assert_array_equal(a[0], b[0])
    np.testing.assert_array_equal(b[2], 0)
    assert (np.asarray(a[1]) != np.asarray(b[1])).all()
  np.testing.assert_array_equal(after.segment, [2, 3, 0])


@pytest.mark.parametrize('cell', GATES)
def test_the_state_is_in_float32_when_the_rest_is_not(cell):
  module = mixer(cell, dtype=jnp.bfloat16)
  params = parameters(module)
  y, cache = run(module, params, slice(None), module.init_cache(len(X), 12))
  assert y.dtype == jnp.bfloat16 and {s.dtype for s in cache.state} == {jnp.dtype('float32')}
  # More than a bfloat16 can hold is in it.
  assert all((np.asarray(s.astype(jnp.bfloat16).astype(jnp.float32)) != s).any() for s in cache.state)
  np.testing.assert_allclose(y.astype(jnp.float32)[REAL], formula(cell, params)[REAL], atol=0.15)


@pytest.mark.parametrize(
  'fields, sentence',
  [
    (dict(cell='lstmm'), "cell='lstmm' is unknown; known: lstm, gru; did you mean 'lstm'"),
    (dict(cell='gru', hidden=0), 'hidden=0 must be at least 1'),
    (dict(cell='gru', dropout=0.1), 'dropout.attention=0.1 drops .* a recurrent network does not have'),
  ],
)
def test_refusals(fields, sentence):
  with pytest.raises(ValueError, match=sentence):
    mixer(**fields)


def test_memory_is_refused():
  module = mixer('lstm')
  x = jnp.asarray(X, jnp.float32)
  with pytest.raises(ValueError, match="mixer='recurrent' does not support cross-attention"):
    module.apply({'params': parameters(module)}, x, Memory(x, context()), context(), None)
