"""Layer normalization."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.initializer import ones, zeros
from tfm.norms.protocol import Norm, vector_parameter
from tfm.spec import Epsilon


class LayerNorm(Norm):
  """(x - mean) / √(variance + epsilon) · scale + bias (Ba et al. 2016, eq. 4).

  Attributes:
    bias, scale: whether the norm has one; Galactica (Taylor et al. 2022, released code) and OLMo have
      neither.
  """

  epsilon: Epsilon = 1e-5
  bias: bool = True
  scale: bool = True

  @nn.compact
  def __call__(self, x):
    y = x.astype(jnp.float32)
    y = y - y.mean(-1, keepdims=True)
    y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + self.epsilon)
    if self.scale:
      y = y * vector_parameter(self, 'scale', ones, x)
    if self.bias:
      y = y + vector_parameter(self, 'bias', zeros, x)
    return y.astype(x.dtype)
