"""Normalisation over the last axis, computed in float32."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.initializer import ones, zeros
from tfm.parallel.sharding import partitioned
from tfm.shapes import Array, Float


class LayerNorm(nn.Module):
  """(x - mean) / √(variance + epsilon) · scale + bias (Ba et al. 2016, eq. 4).

  Attributes:
    axis: the logical axis that is normalised; the model width unless given.
  """

  bias: bool
  epsilon: float = 1e-5
  axis: str = 'embed'

  @nn.compact
  def __call__(self, x: Float[Array, '... D']) -> Float[Array, '... D']:
    y = x.astype(jnp.float32)
    y = y - y.mean(-1, keepdims=True)
    y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + self.epsilon)
    y = y * _vector(self, 'scale', ones, x)
    if self.bias:
      y = y + _vector(self, 'bias', zeros, x)
    return y.astype(x.dtype)


class RMSNorm(nn.Module):
  """x / √(mean(x²) + epsilon) · scale (Zhang & Sennrich 2019, eq. 4); `axis` as above."""

  epsilon: float = 1e-6
  axis: str = 'embed'

  @nn.compact
  def __call__(self, x: Float[Array, '... D']) -> Float[Array, '... D']:
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + self.epsilon)
    return (y * _vector(self, 'scale', ones, x)).astype(x.dtype)


def _vector(module, name, initializer, x):
  """A parameter of the width of x, shaped to meet it (rank promotion is an error here)."""
  vector = module.param(name, partitioned(initializer, (module.axis,)), x.shape[-1:], jnp.float32)
  return vector.reshape((1,) * (x.ndim - 1) + x.shape[-1:])


NORMS = {'layernorm': LayerNorm, 'rmsnorm': RMSNorm}
