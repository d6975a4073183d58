"""Talking-heads attention: heads mix their logits before the softmax, and their weights after it."""

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from tfm.layers.initializer import lecun_normal
from tfm.mixers._attention import Attention
from tfm.parallel.sharding import with_logical_axes
from tfm.shapes import Array, Bool, Float


class TalkingHeads(Attention):
  """Softmax attention with two linear maps over heads (Shazeer et al. 2020, "Talking-heads attention", §3).

    weights[:, t, s] = P_w softmax over s of (P_l logits[:, t, s]),  P_l and P_w [H H]

  The paper lets the numbers of heads of queries, of softmaxes and of values differ; here all are H. Rows of
  logits of all heads are needed at once. Both maps start from N(0, 1 / H), which is not in the paper.
  """

  examples = ('talking_heads',)

  def attend(self, queries, keys, inputs):
    initializer = with_logical_axes(lecun_normal()((0,), (1,)), ('heads', 'rank'))
    maps = (
      self.param(name, initializer, (self.heads, self.heads), jnp.float32)
      for name in ('mix_logits', 'mix_weights')
    )
    return super().attend(queries, keys, inputs | dict(row_normalizer=Partial(talk, *maps)))


def talk(
  mix_logits: Float[Array, 'H N'],
  mix_weights: Float[Array, 'H N'],
  logits: Float[Array, 'B K G T S'],
  visible: Bool[Array, 'B 1 1 T S'],
  inputs: object,
) -> Float[Array, 'B K G T S']:
  """The weights; those of a query without visible keys are zero."""
  B, K, G, T, S = logits.shape
  logits = jnp.einsum('BHTS,HN->BNTS', logits.reshape(B, K * G, T, S), mix_logits)
  visible = visible[:, 0]
  weights = jax.nn.softmax(jnp.where(visible, logits, -1e30), -1)
  weights = jnp.einsum('BHTS,HN->BNTS', jnp.where(visible, weights, 0), mix_weights)
  return weights.reshape(B, K, G, T, S)
