"""How blocks of logits become weights, by running sums, and the gradient of the logits."""

import jax
import jax.numpy as jnp

from tfm.shapes import Array, Float


class OnlineSoftmax:
  """Softmax over blocks of keys; (maximum, denominator, numerator), rescaled as the maximum grows."""

  @staticmethod
  def initial_sums(inputs, shape, channels):
    numerator = jnp.zeros((*shape, channels), jnp.float32)
    if inputs.sinks is None:
      return jnp.full(shape, -jnp.inf), jnp.zeros(shape), numerator
    # The sink counts as a first key with a value of zero.
    sinks = inputs.sinks.astype(jnp.float32).reshape(1, *shape[1:3], 1)
    return jnp.broadcast_to(sinks, shape), jnp.ones(shape), numerator

  @staticmethod
  def add(sums, logits, visible, apply_dropout, v, inputs):
    maximum, denominator, numerator = sums
    logits = jnp.where(visible, logits, -jnp.inf)
    new_maximum = jnp.maximum(maximum, logits.max(-1))
    # Before the first visible key the maximum is -inf; any finite number avoids -inf - -inf.
    finite = jnp.where(new_maximum == -jnp.inf, 0, new_maximum)
    weights, rescale = jnp.exp(logits - finite[..., None]), jnp.exp(maximum - finite)
    return (
      new_maximum,
      denominator * rescale + weights.sum(-1),
      numerator * rescale[..., None] + sum_over_keys(apply_dropout(weights).astype(v.dtype), v),
    )

  @staticmethod
  def finalize(sums):
    maximum, denominator, numerator = sums
    out = numerator / jnp.where(denominator == 0, 1, denominator)[..., None]
    return out, maximum + jnp.log(denominator)

  @staticmethod
  def weights(logits, visible, log_sum_exp, inputs):
    return jnp.where(visible, jnp.exp(logits - log_sum_exp[..., None]), 0)

  @staticmethod
  def logit_gradient(weights, d_weights, delta):
    return weights * (d_weights - delta[..., None])


class Sigmoid:
  """Sigmoid weights, each key independent of the others; the sum is the numerator alone."""

  @staticmethod
  def initial_sums(inputs, shape, channels):
    return jnp.zeros((*shape, channels), jnp.float32)

  @staticmethod
  def add(numerator, logits, visible, apply_dropout, v, inputs):
    weights = jnp.where(visible, jax.nn.sigmoid(logits + inputs.sigmoid_offset), 0)
    return numerator + sum_over_keys(apply_dropout(weights).astype(v.dtype), v)

  @staticmethod
  def finalize(numerator):
    return numerator, jnp.zeros(numerator.shape[:-1])

  @staticmethod
  def weights(logits, visible, log_sum_exp, inputs):
    return jnp.where(visible, jax.nn.sigmoid(logits + inputs.sigmoid_offset), 0)

  @staticmethod
  def logit_gradient(weights, d_weights, delta):
    return d_weights * weights * (1 - weights)


NORMALIZERS = {'softmax': OnlineSoftmax, 'sigmoid': Sigmoid}


def sum_over_keys(
  weights: Float[Array, 'B K G T S'], v: Float[Array, 'B K S C']
) -> Float[Array, 'B K G T C']:
  """Σₛ weightₜₛ vₛ in float32; the queries of a group are rows of one matrix."""
  B, K, G, T, S = weights.shape
  out = jnp.einsum('BKNS,BKSC->BKNC', weights.reshape(B, K, G * T, S), v, preferred_element_type=jnp.float32)
  return out.reshape(B, K, G, T, -1)
