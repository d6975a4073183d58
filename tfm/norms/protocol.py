"""The norm slot: normalization of a vector over its last axis."""

import functools
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp

import tfm.norms
from tfm import spec
from tfm.layers.initializer import Initializer
from tfm.parallel.sharding import with_logical_axes
from tfm.shapes import Array, Float


class Norm(nn.Module):
  """A linen module from x [… D] to [… D] of the same dtype, computed in float32.

  A norm that declares a field `bias` takes the model's `bias` where its spec does not set one.

  Attributes:
    axis: the logical axis that is normalized; the model sets it.
    examples: specs that the conformance suite tries; a file whose bare name is a spec needs none.
  """

  examples: ClassVar[tuple[str, ...]] = ()

  axis: str = 'embed'

  def validate(self) -> None:
    """Raises ValueError for an invalid setting, before anything is compiled."""

  def __call__(self, x: Float[Array, '... D']) -> Float[Array, '... D']:
    """The vectors along the last axis, each normalized independently of the others."""
    raise NotImplementedError(f'{type(self).__name__} must implement __call__')


def vector_parameter(
  module: Norm, name: str, initializer: Initializer, x: Float[Array, '... D']
) -> Float[Array, '... D']:
  """A learned vector of the width of x, reshaped to broadcast with x (implicit rank promotion raises)."""
  vector = module.param(name, with_logical_axes(initializer, (module.axis,)), x.shape[-1:], jnp.float32)
  return vector.reshape((1,) * (x.ndim - 1) + x.shape[-1:])


def norm_factory(text: str, bias: bool, axis: str = 'embed') -> functools.partial:
  """The factory of the norm that a spec names.

  Args:
    bias: the default of the norm's field `bias`, if it has one; a spec overrides it (Falcon and MPT have
      norms that differ from the projections around them).
    axis: the logical axis that is normalized.

  Raises:
    ValueError: for an unknown norm or argument.
  """
  call = spec.parse(text)
  factory = spec.bind(call, spec.find_variant(call.name, tfm.norms, Norm, text), text, dict(axis=axis))
  factory(parent=None).validate()  # no submodule of the module whose method calls this
  defaults = {'bias': bias} if 'bias' in factory.func.__dataclass_fields__ else {}
  return functools.partial(factory.func, **defaults | factory.keywords)
