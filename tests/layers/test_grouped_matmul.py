"""Products of groups of rows: by the loop over tiles as by `ragged_dot`, and group by group."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.layers.grouped_matmul import (
  invert_permutation,
  multiply_groups,
  multiply_ragged,
  multiply_tiles,
  permute,
  plan_visits,
  sum_tiles,
)


DRAW = np.random.default_rng(0)
I, O = 4, 3
SIZES = [
  (1, [1]),
  (6, [0, 6, 0]),
  (6, [0, 0, 0]),
  (40, [3, 0, 17, 1, 9, 10]),
  (40, [3, 0, 17, 1, 9, 0]),  # the last ten rows belong to none
  (300, [299, 1]),
  (5, [1, 0, 0, 1, 0, 0, 2, 0, 0]),
]


def draw(M, E, dtype=jnp.float32):
  shapes = (M, I), (E, I, O), (M, O)
  return tuple(jnp.asarray(DRAW.standard_normal(shape), dtype) for shape in shapes)


def expected(x, kernels, sizes, dy):
  """(products, gradient of x, gradient of the kernels), group by group in float64."""
  x, kernels, dy = (np.asarray(a, np.float64) for a in (x, kernels, dy))
  y, dx, dw, start = np.zeros_like(dy), np.zeros_like(x), np.zeros_like(kernels), 0
  for i, size in enumerate(sizes):
    own = slice(start, start := start + size)
    y[own], dx[own], dw[i] = x[own] @ kernels[i], dy[own] @ kernels[i].T, x[own].T @ dy[own]
  return y, dx, dw


@pytest.mark.sampled(2)
@pytest.mark.parametrize('M, sizes', SIZES, ids=str)
def test_products_and_gradients_equal_those_of_each_group(M, sizes):
  x, kernels, dy = draw(M, len(sizes))
  y, dx, dw = expected(x, kernels, sizes, dy)
  sizes = jnp.asarray(sizes)

  @jax.jit
  def ours(x, kernels, dy):
    products, pull = jax.vjp(lambda x, kernels: multiply_groups(x, kernels, sizes), x, kernels)
    return products, *pull(dy)

  for a, b in zip(ours(x, kernels, dy), (y, dx, dw), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
  # What a TPU computes, and what other devices do.
  for multiply in (multiply_ragged, multiply_tiles):
    np.testing.assert_allclose(jax.jit(multiply)(x, kernels, sizes), y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('M, sizes', SIZES, ids=str)
def test_every_row_of_a_group_is_visited_once_and_by_its_group(M, sizes):
  visits = jax.tree.map(np.asarray, jax.jit(plan_visits, static_argnums=0)(M, jnp.asarray(sizes)))
  R = visits.is_own.shape[1]
  visited = [
    (int(tile * R + row), int(owner))
    for owner, tile, own in zip(visits.owner, visits.tile, visits.is_own)
    for row in np.flatnonzero(own)
  ]
  assert sorted(visited) == [*enumerate(np.repeat(np.arange(len(sizes)), sizes).tolist())]


def test_a_tpu_multiplies_rows_by_ragged_dot_and_other_devices_by_loops():
  """Lowered for a TPU, not run."""
  x, kernels, dy = draw(40, 6)
  sizes = jnp.asarray([3, 0, 17, 1, 9, 10])
  step = jax.jit(jax.value_and_grad(lambda x, w: (multiply_groups(x, w, sizes) * dy).sum(), (0, 1)))

  def count(platform):
    text = step.trace(x, kernels).lower(lowering_platforms=(platform,)).as_text()
    return len(re.findall(r'= "chlo.ragged_dot"|= chlo.ragged_dot', text)), text.count('stablehlo.while')

  assert count('tpu') == (2, 1)  # and the kernels' gradient by a loop
  assert count('cpu') == (0, 3)


def test_kernel_gradients_are_summed_in_float32():
  """3000 rows of one group, each with a gradient of 1: bfloat16 would stop at 256."""
  x, dy = jnp.ones((3000, 1), jnp.bfloat16), jnp.ones((3000, 1), jnp.bfloat16)
  assert jax.jit(sum_tiles)(x, dy, jnp.asarray([2999, 1])).tolist() == [[[2999.0]], [[1.0]]]
  gradient = jax.grad(lambda w: multiply_groups(x, w, jnp.asarray([2999, 1])).astype(jnp.float32).sum())
  assert jax.jit(gradient)(jnp.ones((2, 1, 1))).tolist() == [[[2999.0]], [[1.0]]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize('axes', [(0, 0, 0), (0, None, 0), (0, None, None)], ids=str)
def test_runs_may_be_vmapped(axes):
  """Gradients too, and on a TPU by products without batches, which is all that its compiler takes."""
  arrays = [jnp.stack(each) for each in zip(draw(9, 3)[:2], draw(9, 3)[:2])]
  arrays.append(jnp.asarray([[2, 3, 4], [0, 5, 1]]))
  arrays = [x if axis == 0 else x[0] for x, axis in zip(arrays, axes)]

  @jax.jit
  def gradients(x, kernels, sizes):
    return jax.grad(lambda x, kernels: multiply_groups(x, kernels, sizes).sum(), (0, 1))(x, kernels)

  run = jax.jit(jax.vmap(gradients, axes))
  for i in range(2):
    alone = gradients(*(x if axis is None else x[i] for x, axis in zip(arrays, axes)))
    for together, expected in zip(run(*arrays), alone, strict=True):
      np.testing.assert_allclose(together[i], expected, rtol=1e-5, atol=1e-6)
  text = run.trace(*arrays).lower(lowering_platforms=('tpu',)).as_text()
  assert 'chlo.ragged_dot' in text and 'lhs_batching_dimensions' not in text


def test_an_inverse_permutation_puts_rows_back():
  x, order = jnp.arange(12.0).reshape(6, 2), jnp.asarray([3, 0, 5, 1, 2, 4])
  np.testing.assert_array_equal(permute(permute(x, order), invert_permutation(order)), x)
