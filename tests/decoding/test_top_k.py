import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.decoding.top_k import BLOCK, top_k


# Integers that are rarer the larger they are: some of the largest are equal, in one block and in several.
@pytest.mark.parametrize('p', [0.1, 0.5, 0.9])
@pytest.mark.parametrize('length', [5, 3 * BLOCK, 12 * BLOCK, 20 * BLOCK - 3])
def test_equals_lax(length, p):
  random = np.random.default_rng(length)
  x = random.geometric(p, (3, length)).astype(np.float32)
  x[random.random(x.shape) < 0.5] = -np.inf
  x[1, 4:] = -np.inf  # fewer finite elements than are asked for
  for k in (1, 2, 4):
    for actual, expected in zip(top_k(jnp.asarray(x), k), jax.lax.top_k(x, k)):
      np.testing.assert_array_equal(actual, expected)


def test_reads_no_whole_row():
  """Of long rows only the maxima are reduced: `jax.lax.top_k` sees these, and k blocks."""
  jaxpr = jax.make_jaxpr(lambda x: top_k(x, 4))(jnp.zeros((2, 100 * BLOCK)))
  sizes = [eqn.invars[0].aval.shape[-1] for eqn in jaxpr.eqns if eqn.primitive.name == 'top_k']
  assert sizes == [100, 4 * BLOCK]
