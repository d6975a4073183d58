"""Tokens in blocks of one expert each: where they go, how they get there, and products block by block."""

import functools

import jax
import jax.numpy as jnp
from flax import struct

from tfm.parallel.sharding import shard
from tfm.shapes import Array, Float, Int


@struct.dataclass
class Plan:
  """Where the choices of a group stand in blocks of `rows` slots, and what stands in the slots.

  Attributes:
    slots: of each choice, one beyond the last if it has none.
    sources: the choice in each slot, one beyond the last if it is empty.
    owners: the expert of each block.
  """

  slots: Int[Array, 'A']
  sources: Int[Array, 'M']
  owners: Int[Array, 'n']


def plan(choices: Int[Array, 'A'], experts: int, blocks: int, rows: int, capped: bool) -> Plan:
  """Gives every choice a slot, in the order in which they stand.

  Args:
    choices: experts; `experts` itself is none.
    blocks, rows: how many blocks there are, and the slots of one.
    capped: each expert has one block, the i-th the i-th, and what does not fit goes nowhere. If not,
      it has as many as it needs, one after another, of which there must be enough.
  """
  A, M = len(choices), blocks * rows
  counts = (choices[:, None] == jnp.arange(experts)[None]).sum(0)
  needed = jnp.ones_like(counts) if capped else -(-counts // rows)
  ends = jnp.cumsum(needed)
  order = jnp.argsort(choices, stable=True)
  chosen = choices.clip(max=experts - 1)
  rank = jnp.zeros_like(choices).at[order].set(jnp.arange(A), unique_indices=True)
  rank = rank - (jnp.cumsum(counts) - counts)[chosen]
  fits = (choices < experts) & (rank < (needed * rows)[chosen])
  # What has no place has an index of its own all the same, so that none stands twice.
  slots = jnp.where(fits, ((ends - needed) * rows)[chosen] + rank, M + jnp.arange(A))
  sources = (A + jnp.arange(M)).at[slots].set(jnp.arange(A), mode='drop', unique_indices=True)
  owners = (ends[None] <= jnp.arange(blocks)[:, None]).sum(1).clip(max=experts - 1)
  return Plan(slots, sources, owners)


@jax.vmap
def permuted(x: Float[Array, 'G A D'], places: Int[Array, 'G M']) -> Float[Array, 'G M D']:
  """x at its `places`, none of which stands twice; zeros for those beyond its end."""
  return x.at[places].get(mode='fill', fill_value=0, unique_indices=True)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def product(
  axes: tuple[str | None, str | None],
  x: Float[Array, 'G n R I'],
  kernels: Float[Array, 'E I O'],
  owners: Int[Array, 'G n'],
) -> Float[Array, 'G n R O']:
  """Each block times its owner's kernel, one block of every group after another.

  Only as many rows are multiplied as there are, and for the gradient of the kernels nothing is held
  but their sum.

  Args:
    axes: the logical axes of a kernel that stay cut; groups are cut as 'batch'.
  """
  kernels = shard(kernels, None, *axes)

  def one(_, block):
    x, owner = block
    return None, jnp.einsum('gri,gio->gro', x, kernels[owner])

  return _loop(one, None, x, owners)[1].swapaxes(0, 1)


def _forward(axes, x, kernels, owners):
  return product(axes, x, kernels, owners), (x, kernels, owners)


def _backward(axes, kept, dy):
  x, kernels, owners = kept

  def add(total, block):
    x, dy, owner = block
    made = jnp.einsum('gri,gro->gio', x, dy, preferred_element_type=jnp.float32)
    return jax.vmap(lambda total, i, one: total.at[i].add(one))(total, owner, made), None

  # Every group has a sum of its own until the end: there is one exchange between devices, not one a block.
  zeros = shard(jnp.zeros((len(x), *kernels.shape), jnp.float32), 'batch', None, *axes)
  total, _ = _loop(add, zeros, x, dy, owners)
  dx = product(axes[::-1], dy, kernels.swapaxes(1, 2), owners)
  return dx, total.sum(0).astype(kernels.dtype), None


product.defvjp(_forward, _backward)


def _loop(step, carry, *arrays):
  """A scan over the blocks, the second axis of `arrays`."""
  return jax.lax.scan(step, carry, tuple(x.swapaxes(0, 1) for x in arrays))
