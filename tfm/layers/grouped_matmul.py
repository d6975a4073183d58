"""Tokens in blocks of one expert each: their slots, permutations, and products block by block."""

import functools

import jax
import jax.numpy as jnp
from flax import struct

from tfm.parallel.sharding import shard
from tfm.shapes import Array, Float, Int


@struct.dataclass
class Plan:
  """The slot of each choice of a group, in blocks of `rows` slots, and the choice in each slot.

  Attributes:
    slots: of each choice; beyond the last slot if it is dropped.
    sources: the choice in each slot; beyond the last choice if the slot is empty.
    owners: the expert of each block.
  """

  slots: Int[Array, 'A']
  sources: Int[Array, 'M']
  owners: Int[Array, 'n']


def plan_blocks(choices: Int[Array, 'A'], experts: int, blocks: int, rows: int, is_capped: bool) -> Plan:
  """Assigns a slot to every choice, in their order.

  Args:
    choices: indices of experts; `experts` itself means none.
    blocks, rows: number of blocks, and slots of one block.
    is_capped: expert i has block i alone, and further choices are dropped. Otherwise it has as many
      consecutive blocks as it needs, of which there must be enough.
  """
  A, M = len(choices), blocks * rows
  counts = (choices[:, None] == jnp.arange(experts)[None]).sum(0)
  needed = jnp.ones_like(counts) if is_capped else -(-counts // rows)
  ends = jnp.cumsum(needed)
  order = jnp.argsort(choices, stable=True)
  chosen = choices.clip(max=experts - 1)
  rank = jnp.zeros_like(choices).at[order].set(jnp.arange(A), unique_indices=True)
  rank = rank - (jnp.cumsum(counts) - counts)[chosen]
  fits = (choices < experts) & (rank < (needed * rows)[chosen])
  # Dropped choices get distinct indices too, because the scatter requires unique ones.
  slots = jnp.where(fits, ((ends - needed) * rows)[chosen] + rank, M + jnp.arange(A))
  sources = (A + jnp.arange(M)).at[slots].set(jnp.arange(A), mode='drop', unique_indices=True)
  owners = (ends[None] <= jnp.arange(blocks)[:, None]).sum(1).clip(max=experts - 1)
  return Plan(slots, sources, owners)


@jax.vmap
def permute(x: Float[Array, 'G A D'], places: Int[Array, 'G M']) -> Float[Array, 'G M D']:
  """x at `places`, which are unique; zeros for places beyond its end."""
  return x.at[places].get(mode='fill', fill_value=0, unique_indices=True)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def multiply_blocks(
  axes: tuple[str | None, str | None],
  x: Float[Array, 'G n R I'],
  kernels: Float[Array, 'E I O'],
  owners: Int[Array, 'G n'],
) -> Float[Array, 'G n R O']:
  """Multiplies each block by its owner's kernel, one block of every group at a time.

  No padding beyond the blocks is multiplied, and the backward pass stores only the sum of the kernels'
  gradients.

  Args:
    axes: the logical axes of a kernel that stay sharded; groups are sharded as 'batch'.
    kernels: float32 parameters; they are multiplied in the type of x.
  """
  kernels = shard(kernels.astype(x.dtype), None, *axes)

  def one(_, block):
    x, owner = block
    return None, jnp.einsum('gri,gio->gro', x, kernels[owner])

  return _loop(one, None, x, owners)[1].swapaxes(0, 1)


def _forward(axes, x, kernels, owners):
  return multiply_blocks(axes, x, kernels, owners), (x, kernels, owners)


def _backward(axes, residuals, dy):
  x, kernels, owners = residuals

  def add(total, block):
    x, dy, owner = block
    products = jnp.einsum('gri,gro->gio', x, dy, preferred_element_type=jnp.float32)
    return jax.vmap(lambda total, i, one: total.at[i].add(one))(total, owner, products), None

  # Every group has its own sum until the end, so that devices exchange once, not once per block.
  zeros = shard(jnp.zeros((len(x), *kernels.shape), jnp.float32), 'batch', None, *axes)
  total, _ = _loop(add, zeros, x, dy, owners)
  dx = multiply_blocks(axes[::-1], dy, kernels.swapaxes(1, 2), owners)
  return dx, total.sum(0).astype(kernels.dtype), None


multiply_blocks.defvjp(_forward, _backward)


def _loop(step, carry, *arrays):
  """A scan over the blocks, the second axis of `arrays`."""
  return jax.lax.scan(step, carry, tuple(x.swapaxes(0, 1) for x in arrays))
