"""The angle between query and key."""

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


# What a learned τ may reach at most (Liu et al. 2022, §3.2, where 1/τ stays above 0.01).
CEILING = 100.0
# Vectors shorter than this count as that long, so that zero has a cosine, zero, and a gradient.
SHORTEST = 1e-3


class Cosine(Score):
  """τ · (q/‖q‖) · (k/‖k‖), logits in [-τ, τ] (Luo et al. 2018, "Cosine normalization"; as attention Henry et
  al. 2020, "Query-key normalization for Transformers", and Liu et al. 2022, Swin Transformer V2, eq. 2).

  The temperature τ multiplies, as Henry's g does; Swin V2 divides by its own, which is 1/τ. Learned,
  it is exp of a parameter that starts from log τ, and at most 100; all heads of a layer share it, where
  Swin V2 has one for each. A vector of zeros has the logit 0.

  Attributes:
    temperature: τ, or where it starts from; 10 in Swin V2.
    learned: whether τ is.

  Raises (from `check`):
    ValueError: for a temperature that is not above 0, or a learned one that starts at 100 or more.
  """

  examples = ('cosine', 'cosine(4.0, learned=True)')

  temperature: float = 10.0
  learned: bool = False

  def check(self):
    if self.temperature <= 0:
      raise ValueError(f'temperature={self.temperature} must be above 0')
    if self.learned and self.temperature >= CEILING:
      raise ValueError(
        f'temperature={self.temperature} must start below {CEILING:g} where it is learned, for there it ends'
      )

  @nn.compact
  def __call__(self):
    if not self.learned:
      return Partial(functools.partial(cosine, self.temperature))
    start = math.log(self.temperature)
    initializer = Initializer(f'constant({start:.4g})', nn.initializers.constant(start))
    return Partial(
      exponential, self.param('log_temperature', with_logical_axes(initializer, ()), (), jnp.float32)
    )


def exponential(
  log_temperature: Float[Array, ''], q: Float[Array, 'B K G T C'], k: Float[Array, 'B K S C']
) -> Float[Array, 'B K G T S']:
  """`cosine` with the temperature that its logarithm says, at most `CEILING`."""
  return cosine(jnp.exp(jnp.minimum(log_temperature, math.log(CEILING))), q, k)


def cosine(
  temperature: Float[Array, ''] | float, q: Float[Array, 'B K G T C'], k: Float[Array, 'B K S C']
) -> Float[Array, 'B K G T S']:
  """temperature · cos(q, k), accumulated in float32."""
  return jnp.einsum('BKGTC,BKSC->BKGTS', unit(q, temperature), unit(k), preferred_element_type=jnp.float32)


def unit(x: Float[Array, '... C'], length: Float[Array, ''] | float = 1.0) -> Float[Array, '... C']:
  """x made `length` long along its last axis, in float32; what is shorter than `SHORTEST` stays shorter."""
  wide = x.astype(jnp.float32)
  # The greater before the root: the gradient of a norm at zero is no number.
  squared = jnp.maximum((wide * wide).sum(-1, keepdims=True), SHORTEST**2)
  return (wide * (length * jax.lax.rsqrt(squared))).astype(x.dtype)
