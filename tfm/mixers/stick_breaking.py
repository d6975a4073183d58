"""Stick-breaking attention: the nearest key takes its share first, and the next a share of what is left."""

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from tfm.mixers._attention import Attention
from tfm.shapes import Array, Bool, Float


class StickBreaking(Attention):
  """Attention whose weights break a stick of length one, from the nearest key on (Tan et al. 2024,
  "Stick-breaking attention").

    weight[t, s] = β_ts Π_{s < r < t} (1 - β_tr),  β = σ(logits),  s < t

  A token attends to earlier ones only, and what is left of the stick goes to none. There are no positions
  needed: the order of keys is that of the row, or of the cache.
  """

  examples = ('stick_breaking',)
  supported_masks = ('causal',)
  supports_cross_attention = False

  def attend(self, queries, keys, inputs):
    return super().attend(queries, keys, inputs | dict(row_normalizer=Partial(break_stick)))


def break_stick(
  logits: Float[Array, 'B K G T S'], visible: Bool[Array, 'B 1 1 T S'], inputs: object
) -> Float[Array, 'B K G T S']:
  """The weights, from sums of log(1 - β) over the keys between each key and the query."""
  earlier = inputs.k_positions[:, None, :] < inputs.q_positions[:, :, None]
  visible = visible & earlier[:, None, None]
  log_rest = jnp.where(visible, jax.nn.log_sigmoid(-logits), 0)
  after = jax.lax.cumsum(log_rest, axis=log_rest.ndim - 1, reverse=True)
  after = jnp.pad(after[..., 1:], [(0, 0)] * 4 + [(0, 1)])
  return jnp.where(visible, jnp.exp(jax.nn.log_sigmoid(logits) + after), 0)
