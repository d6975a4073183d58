"""Projections of mixers to heads, and from heads to the width of the model."""

from typing import Literal

import jax

from tfm.layers.linear import Linear
from tfm.mixers.protocol import Mixer
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Float


def project_to_heads(
  mixer: Mixer, name: str, axis: Literal['heads', 'kv_heads'], x: Float[Array, 'B T D']
) -> Float[Array, 'B T H C']:
  """x W, with W [D H C], or [D K C] for the key heads; called by the mixer, whose submodule `name` it is."""
  y = Linear(
    (mixer.width, getattr(mixer, axis), mixer.head_width),
    ('embed', axis, 'kv'),
    mixer.initializer,
    bias=mixer.bias,
    dtype=mixer.dtype,
    name=name,
  )(x)
  return shard(y, 'batch', 'length', axis, 'kv')


def project_from_heads(
  mixer: Mixer, y: Float[Array, 'B T H C'], bias: bool | None = None
) -> Float[Array, 'B T D']:
  """y W, with W [H C D]: the mixer's submodule `out`.

  Args:
    bias: whether it has one; None: as the mixer.
  """
  y = Linear(
    (mixer.heads, y.shape[-1], mixer.width),
    ('heads', 'kv', 'embed'),
    mixer.output_initializer,
    contracted_axes=2,
    bias=mixer.bias if bias is None else bias,
    dtype=mixer.dtype,
    name='out',
  )(y)
  return shard(y, 'batch', 'length', 'embed')


def unit(x: Float[Array, '... C']) -> Float[Array, '... C']:
  """x / |x|, 0 where x is."""
  return x * jax.lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6)
