"""The decoding cache of attention: arrays of every token read so far."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from tfm.layers.cache_type import Rounded, active_cache_type
from tfm.layers.unit_axes import unit_axes
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Float, Int


@struct.dataclass
class TokenCache:
  """Keys, values or similar arrays of the tokens read so far, with positions; segment 0 is an empty slot.

  Slots are filled in the order of reading. Which slots a query sees depends on positions and segments alone,
  so rows of different lengths share one `index`. Heads stand before slots, the layout of the matrix products,
  so that nothing is transposed for each new token.

  Attributes:
    arrays: `[B K S C]` by name, each with its own heads and channels, or `Rounded`.
    positions, segments, prefix: of each slot; see `tfm.mixers.protocol.Context`.
    index: of the next slot to fill.
    layout: what is guaranteed of the positions, as `Context.layout`, if the queries are those of all slots.
    dtype: of the arrays that are rounded.
  """

  arrays: Mapping[str, Array | Rounded]
  positions: Int[Array, 'B S']
  segments: Int[Array, 'B S']
  prefix: Int[Array, 'B S']
  index: Int[Array, '']
  layout: str = struct.field(pytree_node=False, default='arbitrary')
  dtype: jnp.dtype = struct.field(pytree_node=False, default=jnp.float32)

  @classmethod
  def empty(
    cls, batch: int, length: int, rounded: Sequence[str] = (), **shapes: tuple[int, int, jnp.dtype]
  ) -> 'TokenCache':
    """An empty cache with room for `length` tokens.

    Args:
      rounded: the arrays that `active_cache_type` is about; others keep their type.
      shapes: (heads, channels, dtype) of each array.
    """

    def zeros(heads, channels, dtype):
      # A single head is replicated.
      axis = 'kv_heads' if heads > 1 else None
      return shard(jnp.zeros((batch, heads, length, channels), dtype), 'batch', axis, 'length', 'kv')

    slots = shard(jnp.zeros((batch, length), jnp.int32), 'batch', 'length')
    arrays, dtype = {name: zeros(*shape) for name, shape in shapes.items()}, jnp.float32
    if rounded and active_cache_type.value == 'int8':
      arrays |= {name: Rounded.of(arrays[name]) for name in rounded}
      (dtype,) = {shapes[name][2] for name in rounded}
    return cls(arrays, slots, slots, slots, jnp.zeros((), jnp.int32), dtype=dtype)

  def append(self, context: Any, **new: Array) -> 'TokenCache':
    """Writes T new tokens at slots index … index + T - 1: arrays `[B T K C]` by name, and their context."""

    def write(old, new, axis):
      return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), self.index, axis)

    def write_slots(old, new):
      # Without unit axes, as a loop carries it; see `tfm.decoding.while_loop`.
      axes = unit_axes(old)
      return jnp.expand_dims(write(old.squeeze(axes), new.squeeze(axes), 2 - len(axes)), axes)

    def write_array(old, new):
      new = new.swapaxes(1, 2)
      return jax.tree.map(write_slots, old, Rounded.of(new) if isinstance(old, Rounded) else new)

    return TokenCache(
      {name: write_array(old, new[name]) for name, old in self.arrays.items()},
      write(self.positions, context.positions, 1),
      write(self.segments, context.segments, 1),
      self.prefix if context.prefix is None else write(self.prefix, context.prefix, 1),
      self.index + context.positions.shape[1],
      dtype=self.dtype,
    )

  def __getitem__(self, name: str) -> Float[Array, 'B S K C']:
    """One array, in the layout of activations."""
    array = self.arrays[name]
    array = array.restore(self.dtype) if isinstance(array, Rounded) else array
    return array.swapaxes(1, 2)
