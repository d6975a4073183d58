"""The cosine of the angle between query and key."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from tfm.layers.initializer import Initializer
from tfm.parallel.sharding import with_logical_axes
from tfm.scores.protocol import Score
from tfm.shapes import Array, Float
from tfm.spec import PositiveFloat


# The upper bound of a learned τ (Liu et al. 2022, §3.2, where 1/τ stays above 0.01).
MAX_TEMPERATURE = 100.0
# Vectors shorter than this are divided by this norm, so that a zero vector has the cosine 0 and a finite
# gradient.
MIN_NORM = 1e-3


class Cosine(Score):
  """τ · (q/‖q‖) · (k/‖k‖), logits in [-τ, τ] (Luo et al. 2018, "Cosine normalization").

  Used in attention by Henry et al. 2020, "Query-key normalization for Transformers", and Liu et al. 2022,
  Swin Transformer V2, eq. 2. The temperature τ is a factor, as Henry's g; Swin V2 divides by 1/τ. A learned τ
  is exp of a parameter that starts at log τ, at most 100, and shared by all heads of a layer; Swin V2 has one
  per head. A zero vector has the logit 0.

  Attributes:
    temperature: τ, or its initial value if learned; 10 in Swin V2.
    learned: whether τ is a parameter.

  Raises (from `validate`):
    ValueError: for a temperature of 0 or less, or a learned one that starts at 100 or more.
  """

  examples = ('cosine', 'cosine(4.0, learned=True)')

  temperature: PositiveFloat = 10.0
  learned: bool = False

  def validate(self):
    if self.learned and self.temperature >= MAX_TEMPERATURE:
      raise ValueError(
        f'temperature={self.temperature} must start below its upper bound {MAX_TEMPERATURE:g} if learned=True'
      )

  @nn.compact
  def __call__(self):
    if not self.learned:
      return Partial(functools.partial(cosine, self.temperature))
    start = math.log(self.temperature)
    initializer = Initializer(f'constant({start:.4g})', nn.initializers.constant(start))
    return Partial(
      cosine_with_log_temperature,
      self.param('log_temperature', with_logical_axes(initializer, ()), (), jnp.float32),
    )


def cosine_with_log_temperature(
  log_temperature: Float[Array, ''], q: Float[Array, 'B K G T C'], k: Float[Array, 'B K S C']
) -> Float[Array, 'B K G T S']:
  """`cosine` with the temperature exp(log_temperature), at most `MAX_TEMPERATURE`."""
  return cosine(jnp.exp(jnp.minimum(log_temperature, math.log(MAX_TEMPERATURE))), q, k)


def cosine(
  temperature: Float[Array, ''] | float, q: Float[Array, 'B K G T C'], k: Float[Array, 'B K S C']
) -> Float[Array, 'B K G T S']:
  """temperature · cos(q, k), accumulated in float32."""
  return jnp.einsum(
    'BKGTC,BKSC->BKGTS', normalize(q, temperature), normalize(k), preferred_element_type=jnp.float32
  )


def normalize(x: Float[Array, '... C'], length: Float[Array, ''] | float = 1.0) -> Float[Array, '... C']:
  """x scaled to norm `length` along its last axis in float32; norms below `MIN_NORM` count as `MIN_NORM`."""
  wide = x.astype(jnp.float32)
  # The maximum before the square root: the gradient of a norm at zero is NaN.
  squared = jnp.maximum((wide * wide).sum(-1, keepdims=True), MIN_NORM**2)
  return (wide * (length * jax.lax.rsqrt(squared))).astype(x.dtype)
