"""Softmax attention: Position ∘ Score ∘ Mask ∘ Kernel between four projections."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from tfm.layers.linear import Linear
from tfm.mixers.protocol import Context, Mixer
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Float, Int


@struct.dataclass
class Cache:
  """Keys and values of what was read, with their positions and segments; segment 0 is an empty slot.

  Slots are filled in the order of reading; what a query may see is decided by positions and
  segments alone, so rows of different lengths share one `index`. Heads stand before slots, as the
  products want them: nothing is transposed for each new token.
  """

  k: Float[Array, 'B K S C']
  v: Float[Array, 'B K S C']
  positions: Int[Array, 'B S']
  segments: Int[Array, 'B S']
  index: Int[Array, '']

  def append(self, k, v, context: Context) -> 'Cache':
    """Writes T new tokens at slots index … index + T - 1."""
    def write(old, new, axis):
      return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), self.index, axis)
    return Cache(
      write(self.k, k.swapaxes(1, 2), 2), write(self.v, v.swapaxes(1, 2), 2),
      write(self.positions, context.positions, 1), write(self.segments, context.segments, 1),
      self.index + k.shape[1])


class Softmax(Mixer):
  """softmax(score(q, k) + bias, where mask) · v, then one projection (Vaswani et al. 2017, §3.2).

  Multi-head attention is kv_heads = heads, multi-query kv_heads = 1 (Shazeer 2019), grouped-query
  anything between (Ainslie et al. 2023).

  Attributes:
    position, score: factories of this layer's own instances.
    mask, kernel: shared, stateless.
  """

  position: Callable
  score: Callable
  mask: Callable
  kernel: Callable

  @nn.nowrap
  def init_cache(self, batch, length):
    kv = jnp.zeros((batch, self.kv_heads, length, self.head_width), self.dtype)
    kv = shard(kv, 'batch', 'kv_heads', 'length', 'kv')
    slots = shard(jnp.zeros((batch, length), jnp.int32), 'batch', 'length')
    return Cache(kv, kv, slots, slots, jnp.zeros((), jnp.int32))

  @nn.compact
  def __call__(self, x, memory, context, cache):
    if memory is not None:
      raise ValueError('softmax attends within one sequence only; it takes no memory')
    position = self.position(name='position')
    q = self.project('q', 'heads', self.heads, x)
    k = self.project('k', 'kv_heads', self.kv_heads, x)
    v = self.project('v', 'kv_heads', self.kv_heads, x)
    q, k = position.rotate(q, k, context.positions, context.positions)
    keys = context
    if cache is not None:
      cache = keys = cache.append(k, v, context)
      k, v = cache.k.swapaxes(1, 2), cache.v.swapaxes(1, 2)
    train = context.train and self.dropout > 0
    with jax.named_scope('kernel'):
      y = self.kernel(
        q, k, v, score=self.score(name='score')(), mask=self.mask, bias=position.bias(),
        q_positions=context.positions, k_positions=keys.positions,
        q_segments=context.segments, k_segments=keys.segments,
        dropout=self.dropout, dropout_key=self.make_rng('dropout') if train else None)
    y = Linear((self.heads, self.head_width, self.width), ('heads', 'kv', 'embed'),
               self.output_initializer, contracted=2, bias=self.bias, dtype=self.dtype, name='out')(y)
    return shard(y, 'batch', 'length', 'embed'), cache

  def project(self, name, axis, heads, x):
    y = Linear((self.width, heads, self.head_width), ('embed', axis, 'kv'), self.initializer,
               bias=self.bias, dtype=self.dtype, name=name)(x)
    return shard(y, 'batch', 'length', axis, 'kv')
