"""The chunks of a selective state space: either way of scanning, and which platform takes which."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from tests.reference.mamba import selective_scan
from tfm.mixers._selective_scan import scan_associatively, scan_chunk, scan_tokens


B, T, INNER, STATE = 2, 7, 3, 4


@pytest.fixture(scope='module')
def arrays():
  """A, the state before, and a chunk in which a document of the first row begins at token 3."""
  draw = np.random.default_rng(0)
  a = -np.exp(draw.standard_normal((INNER, STATE)))
  delta = np.exp(draw.standard_normal((B, T, INNER)))
  x, b, c = (draw.standard_normal((B, T, n)) for n in (INNER, STATE, STATE))
  first = np.zeros((B, T), bool)
  first[0, 3] = True
  h = draw.standard_normal((B, INNER, STATE))
  return jax.tree.map(
    lambda x: jnp.asarray(x, bool if x.dtype == bool else jnp.float32), (a, h, (x, delta, b, c, first))
  )


def expected(a, h, chunk):
  """By the formula's oracle: a state before is a token whose input is the state."""
  x, delta, b, c, first = (np.asarray(x, np.float64) for x in chunk)
  y = np.zeros(x.shape)
  for row in range(len(x)):
    starts = [0, *np.flatnonzero(first[row]), T]
    for begin, end in itertools.pairwise(starts):
      part = slice(begin, end)
      y[row, part] = selective_scan(x[row, part], delta[row, part], np.asarray(a), b[row, part], c[row, part])
    state = np.asarray(h[row], np.float64)
    for t in range(starts[1]):
      state = np.exp(delta[row, t][:, None] * np.asarray(a)) * state
      y[row, t] += state @ c[row, t]
  return y


@pytest.mark.parametrize('rows', [1, 2])
@pytest.mark.parametrize('scan', [scan_tokens, scan_associatively])
def test_equals_the_formula(scan, rows, arrays):
  a, h, chunk = arrays
  h, chunk = jax.tree.map(lambda x: x[:rows], (h, chunk))
  state, y = jax.jit(scan)(a, h, chunk)
  np.testing.assert_allclose(y, expected(a, h, chunk), rtol=2e-5, atol=2e-5)
  np.testing.assert_allclose(jnp.einsum('BIN,BN->BI', state, chunk[3][:, -1]), y[:, -1], rtol=2e-5, atol=2e-5)


def test_derivatives_are_the_same(arrays):
  """Backward for training, forward for the states of rows that devices share."""
  a, h, chunk = arrays
  *floats, first = chunk

  def derive(scan):
    def loss(a, h, floats):
      state, y = scan(a, h, (*floats, first))
      return jnp.sin(state).sum() + jnp.cos(y).sum()

    forward = jax.jvp(lambda h: scan(a, h, chunk), (h,), (jnp.ones_like(h),))[1]
    return jax.grad(loss, argnums=(0, 1, 2))(a, h, floats), forward

  jax.tree.map(
    lambda p, q: np.testing.assert_allclose(p, q, rtol=2e-5, atol=2e-5),
    jax.jit(derive, static_argnums=0)(scan_tokens),
    jax.jit(derive, static_argnums=0)(scan_associatively),
  )


@pytest.mark.parametrize(
  'kind, platform, loops', [('cpu', 'cpu', True), ('TPU v5 lite', 'tpu', False), ('H200', 'cuda', False)]
)
def test_cpus_alone_walk_from_token_to_token(kind, platform, loops, arrays):
  device = AbstractDevice(device_kind=kind, num_cores=1, platform=platform)
  mesh = AbstractMesh((1,), ('data',), axis_types=(AxisType.Auto,), abstract_device=device)
  with jax.sharding.use_abstract_mesh(mesh):
    jaxpr = jax.make_jaxpr(scan_chunk)(*arrays)
  assert ('scan' in {equation.primitive.name for equation in jaxpr.eqns}) == loops
