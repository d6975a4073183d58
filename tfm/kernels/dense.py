"""The whole logits matrix at once: the specification."""

import dataclasses

import jax
import jax.numpy as jnp

from tfm.kernels.protocol import Kernel
from tfm.parallel.sharding import shard


@dataclasses.dataclass(frozen=True)
class Dense(Kernel):
  """softmax(QKᵀ/√C + bias) V with the T × S matrix in memory (Vaswani et al. 2017, eq. 1)."""

  def attend(self, q, k, v, asked):
    B, T, H, C = q.shape
    S, K = k.shape[1:3]
    # Heads before length: each product below is then one matrix product a head, which XLA's CPU
    # backend does twice as fast as a contraction over interleaved axes.
    q = q.reshape(B, T, K, H // K, C).transpose(0, 2, 3, 1, 4)
    k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
    logits = asked.logits(q, k, asked.q_positions, asked.k_positions)
    seen = asked.seen()[:, None, None]
    weights, log_sum_exp = NORMALIZERS[asked.normalizer](logits, seen, asked)
    if asked.drops:
      kept = asked.kept((B, K, H // K), jnp.arange(T), jnp.arange(S), T)
      weights = jnp.where(kept, weights / (1 - asked.dropout), 0)
    out = jnp.einsum('BKNS,BKSC->BKNC', weights.astype(v.dtype).reshape(B, K, -1, S), v)
    out = out.reshape(B, H, T, v.shape[-1]).swapaxes(1, 2)
    return shard(out, 'batch', 'length', 'heads', 'kv'), log_sum_exp


def softmax(logits, seen, asked):
  """Weights that sum to one over the keys seen and the sink; and the log of their denominator."""
  B, K, G, T, S = logits.shape
  # Finite where nothing is seen: the gradient of such a row is zero and not NaN.
  logits = jnp.where(seen, logits, -1e30)
  if asked.sinks is not None:
    sinks = jnp.broadcast_to(asked.sinks.astype(jnp.float32).reshape(1, K, G, 1, 1), (B, K, G, T, 1))
    logits = jnp.concatenate([logits, sinks], -1)
  weights = jax.nn.softmax(logits, axis=-1)[..., :S]
  weights = jnp.where(seen.any(-1, keepdims=True), weights, 0)
  log_sum_exp = jax.nn.logsumexp(jnp.where(logits == -1e30, -jnp.inf, logits), axis=-1)
  return weights, log_sum_exp.reshape(B, K * G, T)


def sigmoid(logits, seen, asked):
  """σ(logits + offset) for each key seen (Ramapuram et al. 2024, "Sigmoid self-attention", eq. 3)."""
  return jnp.where(seen, jax.nn.sigmoid(logits + asked.offset), 0), None


NORMALIZERS = {'softmax': softmax, 'sigmoid': sigmoid}
