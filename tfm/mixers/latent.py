"""Multi-head latent attention."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.float32_gradients import einsum
from tfm.layers.linear import Linear
from tfm.mixers._head_projections import project_from_heads
from tfm.mixers._token_cache import TokenCache
from tfm.mixers.protocol import Mixer
from tfm.norms.rmsnorm import RMSNorm
from tfm.parallel.sharding import shard, with_logical_axes
from tfm.spec import Size, SizeOrZero


class Latent(Mixer):
  """Attention whose keys and values come from one narrow vector a token, which is all that is cached
  (DeepSeek-AI 2024, DeepSeek-V2, §2.1, eq. 9-19).

    c = rmsnorm(W_DKV x)                                       rank channels, for all heads
    k = [W_UK c; rotate(W_KR x)],  v = W_UV c                  the second part is one for all heads
    q = [W_UQ x; rotate(W_QR x)],  of rmsnorm(W_DQ x) instead of x where query_rank > 0
    y = W_O softmax(q · k / √(C + rope_width), where mask) v

  Positions rotate only the second parts, so W_UK is applied to c unrotated and decoding never computes the
  keys: (q · W_UK c) = (W_UKᵀ q) · c. There a query of `rank + rope_width` channels attends to
  [c; rotate(W_KR x)] directly, one key head for all, whose values are c; W_UV follows (§2.1.2). A bias may be
  added to the logits, if it does not read the keys, which differ between the two forms.

  As published, the projections up from a rank have no bias, whatever `bias` is, and W_DKV and W_KR are one
  projection, `down`.

  Attributes:
    position, score: factories of this layer's own instances, the latter a scaled dot product.
    mask, kernel: shared, stateless.
    rank: channels of c (DeepSeek-V2: 4 C; 512).
    rope_width: channels of the rotated part (C / 2; 64); C is that of the other part.
    query_rank: channels that queries come from (1536); 0: queries come from x.
    value_width: channels of a head's values; 0: C.

  Raises (from `validate`):
    ValueError: for a rank or rope_width below 1, another width below 0, a rope_width that the position cannot
      rotate, a position that reads keys, or a score that is no dot product.
  """

  position: Callable
  score: Callable
  mask: Callable
  kernel: Callable
  rank: Size
  rope_width: Size
  query_rank: SizeOrZero = 0
  value_width: SizeOrZero = 0

  examples = 'latent(rank=8, rope_width=8)', 'latent(rank=16, rope_width=8, query_rank=8, value_width=6)'
  position_hooks = frozenset({'rotate', 'bias'})
  supports_grouped_heads = False
  exposes_attention = True

  def validate(self):
    if self.position.func.reads_content:
      raise ValueError(
        f'the position {self.position.func.__name__.lower()!r} reads the keys, which decoding '
        "never computes; use one that only rotates, such as 'rope'"
      )
    if not self.score.func.absorbs_key_projection:
      raise ValueError(
        f"the score {self.score.func.__name__.lower()!r} needs keys, which decoding never computes; use 'dot'"
      )
    try:
      self.position(head_width=self.position_width, parent=None).validate()
    except ValueError as error:
      raise ValueError(
        f'rope_width={self.rope_width} is the width that the position rotates: {error}'
      ) from error

  @property
  def supports_trees(self):
    return self.kernel.supports_trees and self.position.func.has_blockwise_bias

  @property
  def position_width(self):
    return self.rope_width

  @nn.nowrap
  def init_cache(self, batch, length):
    shape = 1, self.rank + self.rope_width, self.dtype
    return TokenCache.empty(batch, length, rounded=('latent',), latent=shape)

  @property
  def values(self) -> int:
    """Channels of a head's values."""
    return self.value_width or self.head_width

  @nn.compact
  def __call__(self, x, memory, context, cache):
    self.check_memory(memory)
    position = self.position(head_width=self.position_width, name='position')
    q, rope_q = jnp.split(self.queries(x), [self.head_width], -1)
    latent, rope_k = jnp.split(self.linear('down', x, self.rank + self.rope_width), [self.rank], -1)
    latent = RMSNorm(axis='rank', name='norm')(latent)
    rope_q, rope_k = position.rotate(rope_q, rope_k[:, :, None], context.positions, context.positions)
    up_k, up_v = self.up('k', self.head_width), self.up('v', self.values)
    if cache is None:
      keys, layout = context, context.layout
      k = einsum('BTR,RHC->BTHC', latent, up_k)
      k = jnp.concatenate([k, jnp.broadcast_to(rope_k, (*k.shape[:3], self.rope_width))], -1)
      v = einsum('BTR,RHC->BTHC', latent, up_v)
      k, v = (shard(y, 'batch', 'length', 'heads', 'kv') for y in (k, v))
    else:
      keys = cache = cache.append(context, latent=jnp.concatenate([latent[:, :, None], rope_k], -1))
      k, layout = cache['latent'], 'arbitrary'
      v = k[..., : self.rank]
      q = shard(einsum('BTHC,RHC->BTHR', q, up_k), 'batch', 'length', 'heads', None)
    # The logits are scaled by the key width of training.
    score = self.score(head_width=self.head_width + self.rope_width, name='score')()
    q = jnp.concatenate([q, rope_q], -1)
    with jax.named_scope('kernel'):
      inputs = dict(
        score=score,
        mask=self.mask,
        bias=position.bias(context.position_tables.get(position.table_key)),
        has_blockwise_bias=position.has_blockwise_bias,
        has_relative_bias=position.has_relative_bias,
        q_positions=context.positions,
        k_positions=keys.positions,
        q_segments=context.segments,
        k_segments=keys.segments,
        k_prefix=keys.prefix,
        layout=layout,
        lineage=context.lineage,
        dropout=self.dropout,
        dropout_key=self.make_rng('dropout') if context.train and self.dropout > 0 else None,
      )
      y = self.kernel(q, k, v, **inputs)
    self.sow_attention(lambda compute: compute(q, k, **inputs))
    if cache is not None:
      y = einsum('BTHR,RHC->BTHC', y, up_v)
    return project_from_heads(self, y), cache

  def queries(self, x):
    """Both parts of every head's query, [B T H C + rope_width]."""
    if self.query_rank:
      x = RMSNorm(axis='rank', name='q_norm')(self.linear('q_down', x, self.query_rank))
    shape = x.shape[-1], self.heads, self.head_width + self.rope_width
    q = Linear(
      shape,
      ('embed', 'heads', 'kv'),
      self.initializer,
      bias=self.bias and not self.query_rank,
      dtype=self.dtype,
      name='q',
    )(x)
    return shard(q, 'batch', 'length', 'heads', 'kv')

  def linear(self, name, x, rank):
    """A projection down to a few channels."""
    # The kernels to and from a rank are large and sharded like other kernels: the contracted axis as the
    # model width, the new one as a hidden width. The activations between them are small and replicated.
    y = Linear(
      (self.width, rank), ('embed', 'mlp'), self.initializer, bias=self.bias, dtype=self.dtype, name=name
    )(x)
    return shard(y, 'batch', 'length', None)

  def up(self, name, channels):
    """The projection of c to heads, [rank H channels]: no layer, as it is applied from both sides."""
    shape = self.rank, self.heads, channels
    initializer = with_logical_axes(self.initializer((0,), (1, 2)), ('embed', 'heads', 'kv'))
    return self.param(f'{name}_up', initializer, shape, jnp.float32)
