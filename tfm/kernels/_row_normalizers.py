"""How whole rows of logits become weights; `inputs` are a kernel's `AttentionInputs`."""

from typing import Any

import jax
import jax.numpy as jnp

from tfm.shapes import Array, Bool, Float


@jax.custom_jvp
def normalize(logits: Float[Array, '... S']) -> Float[Array, '... S']:
  """p = softmax(logits), whose derivative is read off the result: p · (dx - Σ p · dx).

  JAX's own divides by the squared sum of exponentials, in more passes.
  """
  return jax.nn.softmax(logits, axis=-1)


@normalize.defjvp
def _normalize_jvp(primals, tangents):
  p, (dx,) = normalize(*primals), tangents
  return p, p * (dx - (p * dx).sum(-1, keepdims=True))


def softmax(
  logits: Float[Array, 'B K G T S'], visible: Bool[Array, 'B 1 1 T S'], inputs: Any
) -> tuple[Float[Array, 'B K G T S'], Float[Array, 'B H T']]:
  """Weights that sum to one over the visible keys and the sink, and the log of their denominator."""
  B, K, G, T, S = logits.shape
  # A finite number, so that the gradient of a row without visible keys is zero and not NaN.
  logits = jnp.where(visible, logits, -1e30)
  if inputs.sinks is not None:
    sinks = jnp.broadcast_to(inputs.sinks.astype(jnp.float32).reshape(1, K, G, 1, 1), (B, K, G, T, 1))
    logits = jnp.concatenate([logits, sinks], -1)
  # 0, too, in a row without visible keys.
  weights = jnp.where(visible, normalize(logits)[..., :S], 0)
  log_sum_exp = jax.nn.logsumexp(jnp.where(logits == -1e30, -jnp.inf, logits), axis=-1)
  return weights, log_sum_exp.reshape(B, K * G, T)


def sigmoid(
  logits: Float[Array, 'B K G T S'], visible: Bool[Array, 'B 1 1 T S'], inputs: Any
) -> tuple[Float[Array, 'B K G T S'], None]:
  """σ(logits + sigmoid_offset) for each visible key (Ramapuram et al. 2024, eq. 3)."""
  return jnp.where(visible, jax.nn.sigmoid(logits + inputs.sigmoid_offset), 0), None


NORMALIZERS = {'softmax': softmax, 'sigmoid': sigmoid}
