"""Unit triangular systems against NumPy's solver, forward and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.mixers import _triangular


solve = jax.jit(_triangular.solve)
draw = np.random.default_rng(0)


def draw_system(size, scale=1.0):
  """A batch of systems; `solve` does not read the entries on and above the diagonal."""
  return scale * draw.standard_normal((2, 3, size, size)), draw.standard_normal((2, 3, size, 4))


def solve_numpy(a, right):
  return np.linalg.solve(np.eye(a.shape[-1]) + np.tril(a, -1), right)


@pytest.mark.parametrize('size', [1, 2, 3, 5, 8, 13])
def test_solution(size):
  a, right = draw_system(size, 0.5)
  np.testing.assert_allclose(
    solve(jnp.float32(a), jnp.float32(right)), solve_numpy(a, right), rtol=1e-4, atol=1e-4
  )


def test_powers_larger_than_the_inverse_cost_no_precision():
  """All ones below the diagonal: L³² has entries near 10¹⁸, and the inverse is 1, -1 and 0."""
  a, right = np.ones((64, 64)), draw.standard_normal((64, 4))
  np.testing.assert_allclose(
    solve(jnp.float32(a), jnp.float32(right)), solve_numpy(a, right), rtol=1e-4, atol=1e-5
  )


def test_gradient():
  """The gradient of a weighted sum equals finite differences of NumPy's solution in float64."""
  a, right = (x[0, 0] for x in draw_system(5))
  weights = draw.standard_normal(right.shape)
  gradients = jax.grad(lambda *x: (solve(*x) * jnp.float32(weights)).sum(), (0, 1))(
    jnp.float32(a), jnp.float32(right)
  )

  def slope(argument, index):
    values = []
    for step in (1e-5, -1e-5):
      arguments = [a.copy(), right.copy()]
      arguments[argument][index] += step
      values.append((solve_numpy(*arguments) * weights).sum())
    return (values[0] - values[1]) / 2e-5

  for argument, x in enumerate((a, right)):
    np.testing.assert_allclose(
      gradients[argument],
      [[slope(argument, (i, j)) for j in range(x.shape[1])] for i in range(len(x))],
      rtol=1e-3,
      atol=1e-3,
    )
