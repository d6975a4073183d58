"""Softmax attention: Position ∘ Score ∘ Mask ∘ Kernel between four projections."""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from tfm.layers.initializer import zeros
from tfm.layers.linear import Linear
from tfm.layers.norm import NORMS
from tfm.mixers.protocol import Context, Mixer
from tfm.parallel.sharding import partitioned, shard
from tfm.shapes import Array, Float, Int
from tfm.spec import pick


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
  prefix: Int[Array, 'B S']
  index: Int[Array, '']

  @classmethod
  def of(cls, k: Float[Array, 'B S K C'], v: Float[Array, 'B S K C'], context: Context) -> 'Cache':
    """A full cache of just these."""
    return cls.empty(k.shape, k.dtype).append(k, v, context)

  @classmethod
  def empty(cls, shape: tuple[int, int, int, int], dtype: jnp.dtype) -> 'Cache':
    """No keys yet in room for `shape` = (B, S, K, C) of them."""
    B, S, K, C = shape
    kv = shard(jnp.zeros((B, K, S, C), dtype), 'batch', 'kv_heads', 'length', 'kv')
    slots = shard(jnp.zeros((B, S), jnp.int32), 'batch', 'length')
    return cls(kv, kv, slots, slots, slots, jnp.zeros((), jnp.int32))

  def append(self, k, v, context: Context) -> 'Cache':
    """Writes T new tokens at slots index … index + T - 1."""
    def write(old, new, axis):
      return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), self.index, axis)
    prefix = self.prefix if context.prefix is None else write(self.prefix, context.prefix, 1)
    return Cache(
      write(self.k, k.swapaxes(1, 2), 2), write(self.v, v.swapaxes(1, 2), 2),
      write(self.positions, context.positions, 1), write(self.segments, context.segments, 1),
      prefix, self.index + k.shape[1])


class Softmax(Mixer):
  """softmax(score(q, k) + bias, where mask) · v, then one projection (Vaswani et al. 2017, §3.2).

  Multi-head attention is kv_heads = heads, multi-query kv_heads = 1 (Shazeer 2019), grouped-query
  anything between (Ainslie et al. 2023). Self- and cross-attention differ in where keys and values
  come from. With a `Memory` the cache that comes back holds its keys and values; handed in as
  `memory` from then on, it is projected once.

  Attributes:
    position, score: factories of this layer's own instances.
    mask, kernel: shared, stateless.
    soft_cap: logits become cap · tanh(logits / cap) (Gemma Team 2024, Gemma 2, §2); 0: they do not.
    qk_norm: a norm over the channels of every query and key before the position, such as 'rmsnorm'
      (Henry et al. 2020; Dehghani et al. 2023, ViT-22B, §2); '': none.
    sinks: whether each head has a learned logit in the denominator, which draws attention to
      nothing (Xiao et al. 2023, §3.3; OpenAI 2025, gpt-oss).
    normalizer: 'softmax', or 'sigmoid' of each logit less log(length of training)
      (Ramapuram et al. 2024, eq. 3 and §3.1).

  Raises (from `check`):
    ValueError: for a soft_cap below 0, an unknown norm or normalizer, or sinks with 'sigmoid'.
  """

  position: Callable
  score: Callable
  mask: Callable
  kernel: Callable
  soft_cap: float = 0.0
  qk_norm: str = ''
  sinks: bool = False
  normalizer: str = 'softmax'

  examples = ('softmax', 'softmax(soft_cap=5.0, qk_norm="rmsnorm", sinks=True)', 'softmax(normalizer="sigmoid")')
  hooks = frozenset({'rotate', 'bias'})

  def check(self):
    if self.soft_cap < 0:
      raise ValueError(f'soft_cap={self.soft_cap} must be 0 (none) or more')
    if self.qk_norm:
      pick(self.qk_norm, NORMS, bias=self.bias, axis='kv')
    if self.normalizer not in ('softmax', 'sigmoid'):
      raise ValueError(f"normalizer={self.normalizer!r} is not there; known: 'softmax', 'sigmoid'")
    if self.sinks and self.normalizer == 'sigmoid':
      raise ValueError("sinks=True stand in a denominator, and normalizer='sigmoid' has none; choose one")

  @nn.nowrap
  def init_cache(self, batch, length):
    return Cache.empty((batch, length, self.kv_heads, self.head_width), self.dtype)

  @nn.compact
  def __call__(self, x, memory, context, cache):
    position = self.position(name='position')
    q = self.project('q', 'heads', self.heads, x)
    keys, layout = context, context.layout
    if isinstance(memory, Cache):
      keys = cache = memory
      q, _ = position.rotate(q, q, context.positions, context.positions)
    else:
      if memory is not None:
        x, keys = memory.x, memory.context
      k = self.project('k', 'kv_heads', self.kv_heads, x)
      v = self.project('v', 'kv_heads', self.kv_heads, x)
      q, k = position.rotate(q, k, context.positions, keys.positions)
      if memory is not None:
        keys = cache = Cache.of(k, v, keys)
      elif cache is not None:
        keys = cache = cache.append(k, v, context)
    if cache is not None:
      k, v, layout = cache.k.swapaxes(1, 2), cache.v.swapaxes(1, 2), 'any'
    with jax.named_scope('kernel'):
      y = self.kernel(
        q, k, v, score=self.score(name='score')(), mask=self.mask,
        bias=position.bias(context.shared.get(position.identity)),
        q_positions=context.positions, k_positions=keys.positions,
        q_segments=context.segments, k_segments=keys.segments, k_prefix=keys.prefix, layout=layout,
        sinks=self.param('sinks', partitioned(zeros, ('heads',)), (self.heads,), jnp.float32) if self.sinks else None,
        normalizer=self.normalizer, offset=-math.log(position.length), soft_cap=self.soft_cap,
        dropout=self.dropout,
        dropout_key=self.make_rng('dropout') if context.train and self.dropout > 0 else None)
    y = Linear((self.heads, self.head_width, self.width), ('heads', 'kv', 'embed'),
               self.output_initializer, contracted=2, bias=self.bias, dtype=self.dtype, name='out')(y)
    return shard(y, 'batch', 'length', 'embed'), cache

  def project(self, name, axis, heads, x):
    y = Linear((self.width, heads, self.head_width), ('embed', axis, 'kv'), self.initializer,
               bias=self.bias, dtype=self.dtype, name=name)(x)
    if self.qk_norm and name != 'v':
      y = self.norm(name=f'{name}_norm')(y)
    return shard(y, 'batch', 'length', axis, 'kv')

  def norm(self, name):
    """A norm over the channels of a head."""
    return pick(self.qk_norm, NORMS, bias=self.bias, axis='kv')(name=name)
