"""Root mean square normalization."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.initializer import ones
from tfm.norms.protocol import Norm, vector_parameter
from tfm.spec import Epsilon


class RMSNorm(Norm):
  """x / √(mean(x²) + epsilon) · scale (Zhang & Sennrich 2019, eq. 4)."""

  epsilon: Epsilon = 1e-6

  @nn.compact
  def __call__(self, x):
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + self.epsilon)
    return (y * vector_parameter(self, 'scale', ones, x)).astype(x.dtype)
