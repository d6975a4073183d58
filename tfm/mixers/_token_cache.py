"""What a step form keeps of every token that it has read."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from tfm.parallel.sharding import shard
from tfm.shapes import Array, Float, Int


@struct.dataclass
class TokenCache:
  """Keys, values and their like of what was read, with positions and segments; segment 0 is an empty slot.

  Slots are filled in the order of reading; what a query may see is decided by positions and
  segments alone, so rows of different lengths share one `index`. Heads stand before slots, as the
  products want them: nothing is transposed for each new token.

  Attributes:
    kept: arrays `[B K S C]` by name, each with its own heads and channels.
    positions, segments, prefix: of each slot; see `tfm.mixers.protocol.Context`.
    index: of the next slot to fill.
  """

  kept: Mapping[str, Array]
  positions: Int[Array, 'B S']
  segments: Int[Array, 'B S']
  prefix: Int[Array, 'B S']
  index: Int[Array, '']

  @classmethod
  def empty(cls, batch: int, length: int, **kept: tuple[int, int, jnp.dtype]) -> 'TokenCache':
    """Nothing yet, in room for `length` tokens; `kept` tells heads, channels and type of each array."""

    def zeros(heads, channels, dtype):
      # One head for all is whole on every device.
      axis = 'kv_heads' if heads > 1 else None
      return shard(jnp.zeros((batch, heads, length, channels), dtype), 'batch', axis, 'length', 'kv')

    slots = shard(jnp.zeros((batch, length), jnp.int32), 'batch', 'length')
    kept = {name: zeros(*form) for name, form in kept.items()}
    return cls(kept, slots, slots, slots, jnp.zeros((), jnp.int32))

  def append(self, context: Any, **new: Array) -> 'TokenCache':
    """Writes T new tokens at slots index … index + T - 1: `[B T K C]` by name, and where they stand."""

    def write(old, new, axis):
      return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), self.index, axis)

    return TokenCache(
      {name: write(old, new[name].swapaxes(1, 2), 2) for name, old in self.kept.items()},
      write(self.positions, context.positions, 1),
      write(self.segments, context.segments, 1),
      self.prefix if context.prefix is None else write(self.prefix, context.prefix, 1),
      self.index + context.positions.shape[1],
    )

  def __getitem__(self, name: str) -> Float[Array, 'B S K C']:
    """One of the kept arrays, in the order of activations."""
    return self.kept[name].swapaxes(1, 2)
