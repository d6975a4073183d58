"""The full logits matrix in memory: the specification of attention."""

import dataclasses

import jax.numpy as jnp

from tfm.kernels.protocol import Kernel, group_queries
from tfm.parallel.sharding import shard


@dataclasses.dataclass(frozen=True)
class Dense(Kernel):
  """softmax(QKᵀ/√C + bias) V with the T × S matrix in memory (Vaswani et al. 2017, eq. 1)."""

  supports_trees = True

  def attend(self, q, k, v, inputs):
    B, T, H, _ = q.shape
    S, K = k.shape[1:3]
    # Heads before length: each product below is then one matrix product per head, which is twice as fast on
    # XLA's CPU backend as a contraction over interleaved axes.
    q, k, v = group_queries(q, K), k.swapaxes(1, 2), v.swapaxes(1, 2)
    weights, log_sum_exp = inputs.weights(q, k)
    if inputs.uses_dropout:
      keep_mask = inputs.dropout_keep_mask((B, K, H // K), jnp.arange(T), jnp.arange(S), T)
      weights = jnp.where(keep_mask, weights / (1 - inputs.dropout), 0)
    out = jnp.einsum('BKNS,BKSC->BKNC', weights.astype(v.dtype).reshape(B, K, -1, S), v)
    out = out.reshape(B, H, T, v.shape[-1]).swapaxes(1, 2)
    return shard(out, 'batch', 'length', 'heads', 'kv'), log_sum_exp
