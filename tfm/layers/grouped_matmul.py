"""Products of rows, sorted by group, with the kernel of their group."""

import functools
import math

import jax
import jax.numpy as jnp
from flax import struct

from tfm.shapes import Array, Bool, Float, Int


Gather = tuple[tuple[str, ...], tuple[str, ...]]


def permute(x: Float[Array, 'A D'], places: Int[Array, 'M']) -> Float[Array, 'M D']:
  """x at `places`, which are unique; zeros for places beyond its end."""
  return x.at[places].get(mode='fill', fill_value=0, unique_indices=True)


def invert_permutation(order: Int[Array, 'A']) -> Int[Array, 'A']:
  """The place of every index in `order`."""
  return jnp.zeros_like(order).at[order].set(jnp.arange(len(order)), unique_indices=True)


def multiply_groups(
  x: Float[Array, 'M I'], kernels: Float[Array, 'E I O'], sizes: Int[Array, 'E'], gather: Gather = ((), ())
) -> Float[Array, 'M O']:
  """Multiplies the first sizes[0] rows by the first kernel, the next sizes[1] by the second, …; the rows
  beyond become zeros.

  On a TPU it is `jax.lax.ragged_dot`, whose cost is that of the rows. Elsewhere XLA (of jax 0.10) expands
  that into the product of every row with every kernel, so there a loop over tiles computes it; and as it
  expands the kernels' gradient on a TPU too, the loop always computes that. Gradients are products in the
  type of x; that of the kernels is accumulated in float32, and scattered in the type of the kernels.

  Args:
    kernels: parameters; they are multiplied in the type of x.
    gather: in a `shard_map` the manual axes that shard I and O of the kernels and neither x nor the result:
      each device gathers its own groups' kernels over them, and scatters the gradients.
  """
  return _multiply(gather, x, kernels, sizes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _multiply(gather, x, kernels, sizes):
  return _products(x, _gather_kernels(gather, kernels.astype(x.dtype)), sizes)


def _forward(gather, x, kernels, sizes):
  return _multiply(gather, x, kernels, sizes), (x, kernels, sizes)


def _backward(gather, residuals, dy):
  x, kernels, sizes = residuals
  dx = _products(dy, _gather_kernels(gather, kernels.astype(x.dtype)).swapaxes(1, 2), sizes)
  total = sum_tiles(x, dy, sizes).astype(kernels.dtype)
  for dimension, axes in enumerate(gather, 1):
    if axes:
      total = jax.lax.psum_scatter(total, axes, scatter_dimension=dimension, tiled=True)
  return dx, total, None


_multiply.defvjp(_forward, _backward)


def _gather_kernels(gather, kernels):
  for dimension, axes in enumerate(gather, 1):
    if axes:
      kernels = jax.lax.all_gather(kernels, axes, axis=dimension, tiled=True)
  return kernels


def _products(x, kernels, sizes):
  return jax.lax.platform_dependent(x, kernels, sizes, tpu=multiply_ragged, default=multiply_tiles)


# Runs under `vmap` one after another: a TPU's `ragged_dot` has no batches.
@jax.custom_batching.sequential_vmap
def multiply_ragged(
  x: Float[Array, 'M I'], kernels: Float[Array, 'E I O'], sizes: Int[Array, 'E']
) -> Float[Array, 'M O']:
  """The products by `jax.lax.ragged_dot`, which does not define the rows beyond all groups."""
  y = jax.lax.ragged_dot(x, kernels, sizes)
  return jnp.where((jnp.arange(len(x)) < sizes.sum())[:, None], y, 0)


def multiply_tiles(
  x: Float[Array, 'M I'], kernels: Float[Array, 'E I O'], sizes: Int[Array, 'E']
) -> Float[Array, 'M O']:
  """The products, tile by tile."""
  M, visits = len(x), plan_visits(len(x), sizes)
  x = _split(x, visits)

  def visit(y, v):
    return y.at[v.tile].add(jnp.where(v.is_own[:, None], x[v.tile] @ kernels[v.owner], 0))

  with jax.named_scope(f'useful:{M}:{visits.is_own.size}'):
    y = _visit_all(visit, jnp.zeros((*x.shape[:2], kernels.shape[2]), x.dtype), visits)
  return y.reshape(-1, y.shape[2])[:M]


def sum_tiles(
  x: Float[Array, 'M I'], dy: Float[Array, 'M O'], sizes: Int[Array, 'E']
) -> Float[Array, 'E I O']:
  """The gradients of the kernels, tile by tile."""
  M, visits = len(x), plan_visits(len(x), sizes)
  x, dy = _split(x, visits), _split(dy, visits)

  def visit(total, v):
    own = jnp.where(v.is_own[:, None], x[v.tile], 0)
    product = jnp.einsum('ri,ro->io', own, dy[v.tile], preferred_element_type=jnp.float32)
    return total.at[v.owner].add(product)

  with jax.named_scope(f'useful:{M}:{visits.is_own.size}'):
    return _visit_all(visit, jnp.zeros((len(sizes), x.shape[2], dy.shape[2]), jnp.float32), visits)


@struct.dataclass
class Visits:
  """Each group's tiles in turn: a tile with rows of several groups is visited by each.

  Attributes:
    owner: the group; tile: its tile; is_own: which rows of the tile belong to the group, none of them in what
      is left of the visits of the worst case.
  """

  owner: Int[Array, 'V']
  tile: Int[Array, 'V']
  is_own: Bool[Array, 'V R']


def plan_visits(M: int, sizes: Int[Array, 'E']) -> Visits:
  """The visits of all groups to the tiles of M rows, as many as the worst case needs."""
  E = len(sizes)
  # Small tiles read the kernels often, large ones are visited often; reading costs as much as 64 rows.
  R = 1 << math.isqrt(max(1, 64 * M // E)).bit_length() - 1
  tiles = -(-M // R)
  ends = jnp.cumsum(sizes)
  starts = ends - sizes
  counts = jnp.where(sizes > 0, -(-ends // R) - starts // R, 0)
  last = jnp.cumsum(counts)
  # Every group after the first visits at most one tile that was visited before.
  visit = jnp.arange(tiles + min(E, M) - 1)
  owner = (last[None] <= visit[:, None]).sum(1).clip(max=E - 1)
  tile = (starts[owner] // R + visit - (last - counts)[owner]).clip(max=tiles - 1)
  row = tile[:, None] * R + jnp.arange(R)[None]
  is_own = (starts[owner][:, None] <= row) & (row < ends[owner][:, None]) & (visit < last[-1])[:, None]
  return Visits(owner, tile, is_own)


def _split(x, visits):
  """[M, D] → tiles [n, R, D], with zeros after the last row."""
  R = visits.is_own.shape[1]
  return jnp.pad(x, ((0, -len(x) % R), (0, 0))).reshape(-1, R, x.shape[1])


def _visit_all(visit, carry, visits):
  """A scan over the visits that computes nothing where a visit has no row."""

  def step(carry, v):
    return jax.lax.cond(v.is_own.any(), visit, lambda carry, v: carry, carry, v), None

  return jax.lax.scan(step, carry, visits)[0]
