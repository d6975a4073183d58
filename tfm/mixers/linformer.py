"""Linformer: attention to a fixed number of mixtures of all tokens."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.float32_gradients import einsum
from tfm.mixers._head_projections import project_from_heads, project_to_heads
from tfm.mixers.protocol import Mixer
from tfm.parallel.sharding import shard, with_logical_axes
from tfm.spec import Size


class Linformer(Mixer):
  """softmax(score(q, E k)) F v: keys and values projected along the length (Wang et al. 2020, eq. 7).

    (E k)_r = Σ_s E[p_s, r] k_s over all tokens s of the sequence, p_s the position of each

  so that logits are T × rank and not T × T. All heads share E, keys and values have one each (§4,
  "headwise sharing"). E and F have a row for every training position; a shorter sequence uses the
  first of them. Padding contributes nothing, wherever it is.

  Each of the `rank` mixtures contains every token, so there is no causal form and no decoding, and a row must
  hold a single document. A position rotates keys before they are mixed; positions with a bias are not
  supported, as there are no pairs of tokens.

  Attributes:
    position, score: factories of this layer's own instances.
    mask, kernel: shared, stateless.
    rank: number of mixtures, the paper's k.

  Raises (from `validate`):
    ValueError: for a rank below 1; and when called with more tokens than E has rows, a memory or a cache.
  """

  position: Callable
  score: Callable
  mask: Callable
  kernel: Callable
  rank: Size

  examples = ('linformer(rank=4)',)
  supported_masks = ('full',)
  position_hooks = frozenset({'rotate'})
  supports_decoding = False
  supports_packing = False

  @nn.nowrap
  def init_cache(self, batch, length):
    raise ValueError(
      "mixer='linformer' mixes all tokens before attention, so it cannot decode with a cache; use 'softmax'"
    )

  @nn.compact
  def __call__(self, x, memory, context, cache):
    position = self.position(name='position')
    B, T = x.shape[:2]
    self.check_memory(memory)
    if cache is not None:
      self.init_cache(B, T)
    if T > position.length:
      raise ValueError(
        f"mixer='linformer' projects at most {position.length} tokens, and the row has {T}; "
        'shorten it or train with a longer data.length'
      )
    q, k, v = (
      project_to_heads(self, name, axis, x)
      for name, axis in (('q', 'heads'), ('k', 'kv_heads'), ('v', 'kv_heads'))
    )
    q, k = position.rotate(q, k, context.positions, context.positions)
    k, v = self.shorten('E', k, context, position.length), self.shorten('F', v, context, position.length)
    # The kernel gets `rank` keys without positions, visible to every query that is no padding.
    places = jnp.broadcast_to(jnp.arange(self.rank)[None], (B, self.rank))
    with jax.named_scope('kernel'):
      y = self.kernel(
        q,
        k,
        v,
        score=self.score(name='score')(),
        mask=self.mask,
        bias=None,
        q_positions=context.positions,
        k_positions=places,
        q_segments=(context.segments > 0).astype(jnp.int32),
        k_segments=jnp.ones_like(places),
        dropout=self.dropout,
        dropout_key=self.make_rng('dropout') if context.train and self.dropout > 0 else None,
      )
    return project_from_heads(self, y), None

  def shorten(self, name, x, context, length):
    """[B S K C] → [B rank K C], by the rows of a learned [length, rank] that the tokens' positions choose."""
    table = self.param(
      name,
      with_logical_axes(self.initializer((0,), (1,)), ('table', 'rank')),
      (length, self.rank),
      jnp.float32,
    )
    real = context.segments > 0
    if context.layout == 'contiguous':
      mixed = einsum('BSKC,SR->BRKC', jnp.where(real[..., None, None], x, 0), table[: x.shape[1]])
    else:
      chosen = jnp.where(real[..., None], table[jnp.where(real, context.positions, 0)], 0)
      mixed = einsum('BSKC,BSR->BRKC', x, chosen)
    return shard(mixed, 'batch', 'rank', 'kv_heads', 'kv')
