"""Selective attention: each token can mask earlier tokens for all that follow."""

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from tfm.mixers._attention import Attention
from tfm.shapes import Array, Bool, Float


class Selective(Attention):
  """Softmax attention whose logits sink by what tokens between key and query select (Leviathan et al. 2024,
  "Selective attention improves Transformer").

    S_ts = max(0, logits_ts of head 0),  0 for s = t and for the first token of a document
    weights = softmax over s of (logits_ts - F_ts),  F_ts = Σ_{r < t} S_rs, for all heads

  It has no parameters of its own. F_s of the tokens read so far is cached beside each key; keys are not
  removed from the cache, as the paper does with those of large F.
  """

  examples = ('selective',)
  supported_masks = ('causal',)
  supports_cross_attention = False

  @property
  def cached_shapes(self):
    return super().cached_shapes | dict(masked=(1, 1, jnp.float32))

  def compute_features(self, x, context, cache):
    return dict(masked=jnp.zeros((*x.shape[:2], 1, 1)))

  def attend(self, queries, keys, inputs):
    before = keys['masked'][:, :, 0, 0]
    return super().attend(queries, keys, inputs | dict(row_normalizer=Partial(mask_selected, before)))

  def update_cache(self, cache, queries, inputs):
    # As weights: rows of logits are what a normalizer gets.
    select = inputs | dict(row_normalizer=Partial(select_keys))
    selected = self.kernel.attention_weights(queries['q'], cache['k'], **select)[:, 0]
    masked = cache.arrays['masked'] + selected.sum(1)[:, None, :, None]
    return cache.replace(arrays={**cache.arrays, 'masked': masked})


def select_keys(
  logits: Float[Array, 'B K G T S'], visible: Bool[Array, 'B 1 1 T S'], inputs: object
) -> Float[Array, 'B K G T S']:
  """S, the same for all heads."""
  q, k = inputs.q_positions[:, :, None], inputs.k_positions[:, None, :]
  may_be_masked = visible & ((k != q) & (k > 0))[:, None, None]
  return jnp.broadcast_to(jnp.where(may_be_masked, jax.nn.relu(logits[:, :1, :1]), 0), logits.shape)


def mask_selected(
  before: Float[Array, 'B S'],
  logits: Float[Array, 'B K G T S'],
  visible: Bool[Array, 'B 1 1 T S'],
  inputs: object,
) -> Float[Array, 'B K G T S']:
  """The weights after F, of which `before` is the part of the tokens before these queries."""
  selected = select_keys(logits, visible, inputs)[:, :1, :1]
  earlier = jnp.pad(selected[..., :-1, :], [(0, 0)] * 3 + [(1, 0), (0, 0)])
  masked = before[:, None, None, None] + jnp.cumsum(earlier, 3)
  weights = jax.nn.softmax(jnp.where(visible, logits - masked, -1e30), -1)
  return jnp.where(visible, weights, 0)
