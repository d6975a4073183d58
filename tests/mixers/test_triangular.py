"""Unit triangular systems against NumPy's solver, forward and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.mixers import _triangular


solve = jax.jit(_triangular.solve)
draw = np.random.default_rng(0)


def system(size, scale=1.0):
  """Many at once; what stands on and above the diagonal is nobody's business."""
  return scale * draw.standard_normal((2, 3, size, size)), draw.standard_normal((2, 3, size, 4))


def expected(a, right):
  return np.linalg.solve(np.eye(a.shape[-1]) + np.tril(a, -1), right)


@pytest.mark.parametrize('size', [1, 2, 3, 5, 8, 13])
def test_solution(size):
  a, right = system(size, 0.5)
  np.testing.assert_allclose(
    solve(jnp.float32(a), jnp.float32(right)), expected(a, right), rtol=1e-4, atol=1e-4
  )


def test_powers_that_outgrow_the_inverse_do_no_harm():
  """All ones below the diagonal: L³² has entries near 10¹⁸, and the inverse is 1, -1 and 0."""
  a, right = np.ones((64, 64)), draw.standard_normal((64, 4))
  np.testing.assert_allclose(
    solve(jnp.float32(a), jnp.float32(right)), expected(a, right), rtol=1e-4, atol=1e-5
  )


def test_gradient():
  """Of a weighted sum, by differences of NumPy's solution in float64."""
  a, right = (x[0, 0] for x in system(5))
  weights = draw.standard_normal(right.shape)
  found = jax.grad(lambda *x: (solve(*x) * jnp.float32(weights)).sum(), (0, 1))(
    jnp.float32(a), jnp.float32(right)
  )

  def slope(which, index):
    values = []
    for step in (1e-5, -1e-5):
      moved = [a.copy(), right.copy()]
      moved[which][index] += step
      values.append((expected(*moved) * weights).sum())
    return (values[0] - values[1]) / 2e-5

  for which, x in enumerate((a, right)):
    np.testing.assert_allclose(
      found[which],
      [[slope(which, (i, j)) for j in range(x.shape[1])] for i in range(len(x))],
      rtol=1e-3,
      atol=1e-3,
    )
