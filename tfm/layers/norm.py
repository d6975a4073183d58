"""Normalisation over the model width, computed in float32."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.initializer import ones, zeros
from tfm.parallel.sharding import partitioned
from tfm.shapes import Array, Float


class LayerNorm(nn.Module):
  """(x - mean) / √(variance + epsilon) · scale + bias (Ba et al. 2016, eq. 4)."""

  bias: bool
  epsilon: float = 1e-5

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
  """x / √(mean(x²) + epsilon) · scale (Zhang & Sennrich 2019, eq. 4)."""

  epsilon: float = 1e-6

  @nn.compact
  def __call__(self, x: Float[Array, '... D']) -> Float[Array, '... D']:
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + self.epsilon)
    return (y * _vector(self, 'scale', ones, x)).astype(x.dtype)


def _vector(module, name, initializer, x):
  """A parameter of the width of x, shaped to meet it (rank promotion is an error here)."""
  vector = module.param(name, partitioned(initializer, ('embed',)), x.shape[-1:], jnp.float32)
  return vector.reshape((1,) * (x.ndim - 1) + x.shape[-1:])


NORMS = {'layernorm': LayerNorm, 'rmsnorm': RMSNorm}
