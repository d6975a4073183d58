"""The causal convolution against its sum, document by document, in whole rows and through a window."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import mamba as oracle
from tfm.layers.causal_convolution import CausalConvolution, Window


B, T = 4, 13
CHANNELS = (2, 3)
# Two documents side by side; padding around; a document interrupted by padding; one whole row.
SEGMENTS = np.array(
  [[1] * 5 + [2] * 8, [0] * 3 + [3] * 7 + [0] * 3, [1, 1, 1, 0, 0, 1, 1, 0, 2, 2, 2, 0, 2], [1] * 13]
)
X = np.random.default_rng(0).standard_normal((B, T, *CHANNELS)).astype(np.float32)
REAL = SEGMENTS[..., None, None] > 0
SETTINGS = [(4, 1), (1, 1), (3, 2), (2, 5), (3, 20)]


def make_layer(taps=4, dilation=1, **settings):
  module = CausalConvolution(CHANNELS, ('heads', 'kv'), taps, dilation, **settings)
  draw = np.random.default_rng(1)
  params = dict(weight=draw.standard_normal((taps, *CHANNELS)), bias=draw.standard_normal(CHANNELS))
  if not module.bias:
    del params['bias']
  return module, jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)


@functools.partial(jax.jit, static_argnums=0, static_argnames='unbroken')
def apply(module, params, *row, unbroken=False):
  return module.apply({'params': params}, *row, unbroken=unbroken)


def compute_expected(params, dilation=1):
  y = np.zeros(X.shape)
  for row in range(B):
    for document in set(SEGMENTS[row]) - {0}:
      part = SEGMENTS[row] == document
      y[row, part] = oracle.convolution(X[row, part], **jax.tree.map(np.asarray, params), dilation=dilation)
  return y


@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize('taps, dilation', SETTINGS)
def test_equals_the_sum(taps, dilation, bias):
  module, params = make_layer(taps, dilation, bias=bias)
  y, window = apply(module, params, X, SEGMENTS)
  np.testing.assert_allclose(np.where(REAL, y, 0), compute_expected(params, dilation), rtol=1e-5, atol=1e-5)
  assert window is None


def test_unbroken_documents_equal_the_sum():
  module, params = make_layer()
  rows = [0, 1, 3]
  y, _ = apply(module, params, X[rows], SEGMENTS[rows], unbroken=True)
  np.testing.assert_allclose(np.where(REAL[rows], y, 0), compute_expected(params)[rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
  'pieces',
  [
    (13,),
    pytest.param((5, 8), marks=pytest.mark.slow),
    (2, 1, 7, 3),
    pytest.param((1,) * 13, marks=pytest.mark.slow),
  ],
  ids=str,
)
@pytest.mark.parametrize('taps, dilation', SETTINGS)
def test_pieces_through_a_window_equal_the_sum(taps, dilation, pieces):
  module, params = make_layer(taps, dilation)
  window = Window.empty((B, (taps - 1) * dilation, *CHANNELS), ('heads', 'kv'), jnp.float32)
  shapes = jax.tree.map(jnp.shape, window)
  outputs, start = [], 0
  for piece in pieces:
    part = slice(start, start + piece)
    y, window = apply(module, params, X[:, part], SEGMENTS[:, part], window)
    assert jax.tree.map(jnp.shape, window) == shapes
    outputs.append(y)
    start += piece
  np.testing.assert_allclose(
    np.where(REAL, np.concatenate(outputs, 1), 0), compute_expected(params, dilation), rtol=1e-5, atol=1e-5
  )


def test_outputs_depend_on_earlier_tokens_of_their_document_only():
  module, params = make_layer()
  row = jnp.asarray(SEGMENTS[2:3])
  jacobian = jax.jit(jax.jacobian(lambda x: module.apply({'params': params}, x, row)[0].sum((0, 2, 3))))(
    X[2:3]
  )
  influence = np.abs(jacobian[:, 0]).sum((2, 3)) > 0
  real_tokens = np.flatnonzero(SEGMENTS[2])
  for t in real_tokens:
    same = [s for s in real_tokens if s <= t and SEGMENTS[2][s] == SEGMENTS[2][t]]
    assert np.flatnonzero(influence[t]).tolist() == same[-4:]


def test_bfloat16_inputs_are_summed_in_float32():
  module, params = make_layer(dtype=jnp.bfloat16)
  x = jnp.asarray(X, jnp.bfloat16)
  y, _ = apply(module, params, x, jnp.asarray(SEGMENTS))
  exact, _ = apply(make_layer()[0], params, x.astype(jnp.float32), jnp.asarray(SEGMENTS))
  assert y.dtype == jnp.bfloat16
  np.testing.assert_array_equal(y, exact.astype(jnp.bfloat16))


def test_initialization():
  module = CausalConvolution((64,), ('mlp',), 4)
  params = module.init(jax.random.key(0), jnp.zeros((1, 5, 64)), jnp.ones((1, 5), int))['params']
  assert {name: box.names for name, box in params.items()} == {'weight': ('taps', 'mlp'), 'bias': ('mlp',)}
  for box in params.values():
    assert 0.45 < np.abs(box.value).max() <= 0.5
