"""What kinds of attention share: projections to heads and from them, positions, a cache of tokens."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.initializer import Factory, as_factory
from tfm.layers.linear import Linear
from tfm.mixers._head_projections import project_from_heads
from tfm.mixers._token_cache import TokenCache
from tfm.mixers.protocol import Context, Mixer
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Float


class Attention(Mixer):
  """W_O finish(attend(rotate(W_Q x), rotate(W_K m), W_V m)), where m is x itself or a memory.

  `attend` calls the kernel. A subclass overrides what differs. Given a `Memory`, the returned
  cache holds its keys and values; pass that cache as `memory` from then on, so that the memory is projected
  only once.

  Attributes:
    position, score: factories of this layer's modules: how positions enter, and the function (q, k) → logits.
    mask: which key position a query position may see.
    kernel: the algorithm that computes attention, such as 'dense' or 'chunked'; all compute the same numbers.
    value_initializer: of the projection to values; None: as those of the others.
  """

  position: Callable
  score: Callable
  mask: Callable
  kernel: Callable
  value_initializer: Factory | None = dataclasses.field(default=None, kw_only=True)

  position_hooks = frozenset({'rotate', 'bias'})
  supports_cross_attention = True
  supports_mup = True
  projects_position_table = True
  exposes_attention = True

  def attend(
    self, queries: Mapping[str, Array], keys: Mapping[str, Array], inputs: Mapping[str, Any]
  ) -> Float[Array, 'B T H C2']:
    """Attention of the new tokens; sows its weights.

    Args:
      queries: 'q' [B T H C], and of self-attention what `keys` has, of the new tokens alone.
      keys: 'k' [B S K C], 'v' [B S K C2] and `compute_features`, of all tokens to attend to.
      inputs: the fields of `tfm.kernels.protocol.AttentionInputs`.
    """
    q, k, v = queries['q'], keys['k'], keys['v']
    self.sow_attention(lambda compute: compute(q, k, **inputs))
    return self.kernel(q, k, v, **inputs)

  def compute_features(
    self, x: Float[Array, 'B T D'], context: Context, cache: TokenCache | None
  ) -> dict[str, Float[Array, 'B T N M']]:
    """What travels with each key besides 'k' and 'v', by name; `cache` has the earlier tokens."""
    return {}

  def update_cache(
    self, cache: TokenCache, queries: Mapping[str, Array], inputs: Mapping[str, Any]
  ) -> TokenCache:
    """The cache that is returned, from the one with the new tokens, which `attend` reads."""
    return cache

  def finish_heads(self, y: Float[Array, 'B T H C2'], x: Float[Array, 'B T D']) -> Float[Array, 'B T H C2']:
    """The heads before the output projection; x is the input of the layer."""
    return y

  @property
  def head_value_width(self) -> int:
    """Channels of a head's values."""
    return self.head_width

  @property
  def cached_shapes(self) -> dict[str, tuple[int, int, jnp.dtype]]:
    """(heads, channels, dtype) of what the cache holds of each token."""
    k, v = ((self.kv_heads, width, self.dtype) for width in (self.head_width, self.head_value_width))
    return dict(k=k, v=v)

  @nn.nowrap
  def init_cache(self, batch, length):
    return TokenCache.empty(batch, length, rounded=('k', 'v'), **self.cached_shapes)

  @nn.compact
  def __call__(self, x, memory, context, cache):
    self.check_memory(memory)
    position = self.position(name='position')
    projections = {letter: self.make_projection(letter) for letter in 'qkv'}
    queries = dict(q=self.transform('q', self.project(projections['q'], x)))
    # Keys and values come from one of four places: this sequence (training), this sequence and its cache
    # (decoding), a memory (cross-attention), or the cache of a memory that was projected before.
    key_source, layout = context, context.layout
    if isinstance(memory, TokenCache):
      key_source = cache = memory
      queries['q'], _ = position.rotate(queries['q'], queries['q'], context.positions, context.positions)
    else:
      source = x
      if memory is not None:
        source, key_source = memory.x, memory.context
      keys = {letter: self.transform(letter, self.project(projections[letter], source)) for letter in 'kv'}
      queries['q'], keys['k'] = position.rotate(
        queries['q'], keys['k'], context.positions, key_source.positions
      )
      keys |= self.compute_features(source, key_source, cache)
      if memory is not None:
        cache = self.init_cache(*source.shape[:2]).append(key_source, **keys)
        key_source = cache = cache.replace(layout=layout if memory.context is context else 'arbitrary')
      else:
        queries |= keys
        if cache is not None:
          key_source = cache = cache.append(context, **keys)
    lineage = context.lineage if memory is None else None
    if cache is not None:
      keys, layout = {name: cache[name] for name in cache.arrays}, cache.layout
    position_table = context.position_tables.get(position.table_key)
    if position.uses_qk_projections:
      position_table = tuple(projections[letter](position_table) for letter in 'qk')
    inputs = dict(
      score=self.score(name='score')(),
      mask=self.mask,
      bias=position.bias(position_table),
      has_blockwise_bias=position.has_blockwise_bias,
      has_relative_bias=position.has_relative_bias,
      q_positions=context.positions,
      k_positions=key_source.positions,
      q_segments=context.segments,
      k_segments=key_source.segments,
      k_prefix=key_source.prefix,
      layout=layout,
      lineage=lineage,
      dropout=self.dropout,
      dropout_key=self.make_rng('dropout') if context.train and self.dropout > 0 else None,
    )
    with jax.named_scope('kernel'):
      y = self.attend(queries, keys, inputs)
      if cache is not None and memory is None:
        cache = self.update_cache(cache, queries, inputs)
    return project_from_heads(self, self.finish_heads(y, x), self.has_bias('o')), cache

  def make_projection(self, letter):
    """The linear layer of keys ('k'), values ('v'), queries ('q'), or of something else that query heads have
    as many channels of as values.
    """
    shape, axes = self.head_shape(letter)
    return Linear(
      (self.width, *shape),
      ('embed', *axes),
      self.projection_initializer(letter),
      bias=self.has_bias(letter),
      dtype=self.dtype,
      name=letter,
    )

  @nn.nowrap
  def head_shape(self, letter):
    """((heads, channels), logical axes) of a projection; see `make_projection`."""
    axis, heads = ('kv_heads', self.kv_heads) if letter in 'kv' else ('heads', self.heads)
    return (heads, self.head_width if letter in 'qk' else self.head_value_width), (axis, 'kv')

  @property
  def transformed_shapes(self):
    return {letter: self.head_shape(letter) for letter in 'qkv'}

  def project(self, projection, x):
    """Applies a projection to heads, and what normalizes them."""
    y = self.normalize_heads(projection(x), projection.name)
    return shard(y, 'batch', 'length', projection.axes[1], 'kv')

  def normalize_heads(self, y, letter):
    """Queries, keys or values before the position."""
    return y

  def projection_initializer(self, letter) -> Factory:
    """Of the projection of a letter of 'qkv'."""
    return as_factory(self.value_initializer or self.initializer) if letter == 'v' else self.initializer

  def has_bias(self, letter) -> bool:
    """Whether the projection of a letter of 'qkvo' has a bias."""
    return self.bias
