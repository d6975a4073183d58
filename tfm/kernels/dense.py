"""The whole logits matrix at once: the specification."""

import dataclasses

import jax
import jax.numpy as jnp

from tfm.kernels.protocol import Kernel
from tfm.parallel.sharding import shard


@dataclasses.dataclass(frozen=True)
class Dense(Kernel):
  """softmax(QKᵀ/√C + bias) V with the T × S matrix in memory (Vaswani et al. 2017, eq. 1)."""

  def __call__(self, q, k, v, *, score, mask, bias, q_positions, k_positions, q_segments, k_segments,
               dropout=0.0, dropout_key=None):
    B, T, H, C = q.shape
    K = k.shape[2]
    # Heads before length: each product below is then one matrix product a head, which XLA's CPU
    # backend does twice as fast as a contraction over interleaved axes.
    q = q.reshape(B, T, K, H // K, C).transpose(0, 2, 3, 1, 4)
    k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
    logits = score(q, k)
    if bias is not None:
      logits = logits + bias(q, k, q_positions, k_positions)
    seen = mask(q_positions[:, :, None], k_positions[:, None, :])
    seen &= (q_segments[:, :, None] == k_segments[:, None, :]) & (k_segments != 0)[:, None, :]
    seen = seen[:, None, None]
    # A finite stand-in for -inf keeps the gradient of a row that sees nothing at zero, not NaN.
    weights = jax.nn.softmax(jnp.where(seen, logits, -1e30), axis=-1)
    weights = jnp.where(seen.any(-1, keepdims=True), weights, 0).astype(v.dtype)
    if dropout and dropout_key is not None:
      kept = jax.random.bernoulli(dropout_key, 1 - dropout, weights.shape)
      weights = jnp.where(kept, weights / (1 - dropout), 0)
    out = jnp.einsum('BKNS,BKSC->BKNC', weights.reshape(B, K, -1, weights.shape[-1]), v)
    out = out.reshape(B, H, T, v.shape[-1]).swapaxes(1, 2)
    return shard(out, 'batch', 'length', 'heads', 'kv')
