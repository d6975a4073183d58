"""Normalisation over the last axis, computed in float32."""

import functools
import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.initializer import ones, zeros
from tfm.parallel.sharding import with_logical_axes
from tfm.shapes import Array, Float
from tfm.spec import pick


class LayerNorm(nn.Module):
  """(x - mean) / √(variance + epsilon) · scale + bias (Ba et al. 2016, eq. 4).

  Attributes:
    bias, scale: whether there is one; neither in Galactica (Taylor et al. 2022, released code) and OLMo.
    axis: the logical axis that is normalised; the model width unless given.
  """

  epsilon: float = 1e-5
  bias: bool = True
  scale: bool = True
  axis: str = 'embed'

  @nn.compact
  def __call__(self, x: Float[Array, '... D']) -> Float[Array, '... D']:
    y = x.astype(jnp.float32)
    y = y - y.mean(-1, keepdims=True)
    y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + self.epsilon)
    if self.scale:
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
  vector = module.param(name, with_logical_axes(initializer, (module.axis,)), x.shape[-1:], jnp.float32)
  return vector.reshape((1,) * (x.ndim - 1) + x.shape[-1:])


NORMS = {'layernorm': LayerNorm, 'rmsnorm': RMSNorm}


def norm(text: str, bias: bool, axis: str = 'embed') -> functools.partial:
  """The factory of the norm that a spec names, over an axis; `bias` holds where there may be one and the spec does
  not say: those of Falcon and MPT are not as the projections around them.

  Raises:
    ValueError: if there is no such norm, or it does not take what the spec says.
  """
  made = pick(text, NORMS, axis=axis)
  takes = 'bias' in inspect.signature(made.func).parameters
  return functools.partial(made.func, **({'bias': bias} if takes else {}) | made.keywords)
