"""Learned scales of channels."""

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.initializer import ones
from tfm.parallel.sharding import with_logical_axes
from tfm.shapes import Array, Float


class LearnedScale(nn.Module):
  """by · s ⊙ x, with s [C] learned from ones.

  Attributes:
    channels: C; axis: its logical axis.
    by: a constant factor.
  """

  channels: int
  axis: str
  by: float = 1.0

  @nn.compact
  def __call__(self, x: Float[Array, '... C']) -> Float[Array, '... C']:
    s = self.param('scale', with_logical_axes(ones, (self.axis,)), (self.channels,), jnp.float32)
    return x * (self.by * s).astype(x.dtype).reshape((1,) * (x.ndim - 1) + s.shape)
