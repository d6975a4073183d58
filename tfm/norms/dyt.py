"""Dynamic tanh: a bounded function of each channel in place of a norm."""

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.initializer import constant, ones, zeros
from tfm.norms.protocol import Norm, vector_parameter
from tfm.parallel.sharding import with_logical_axes
from tfm.spec import PositiveFloat


class DynamicTanh(Norm):
  """tanh(α x) · scale + bias with a learned number α (Zhu et al. 2025, Transformers without
  Normalization, §4).

  It reads no statistics of the vector, so that channels do not depend on each other.

  Attributes:
    alpha: the initial value of α, the parameter `input_scale`; 0.5 in the paper, which chooses other values
      for language models (§7).
    bias: whether there is one.
  """

  alpha: PositiveFloat = 0.5
  bias: bool = True

  @nn.compact
  def __call__(self, x):
    input_scale = self.param('input_scale', with_logical_axes(constant(self.alpha), ()), (), jnp.float32)
    y = jnp.tanh(input_scale * x.astype(jnp.float32)) * vector_parameter(self, 'scale', ones, x)
    if self.bias:
      y = y + vector_parameter(self, 'bias', zeros, x)
    return y.astype(x.dtype)
