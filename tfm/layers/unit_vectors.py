"""Vectors of length one, along the width of a model."""

import jax
import jax.numpy as jnp

from tfm.shapes import Array, Float


def normalize(x: Float[Array, '...'], axis: int = -1) -> Float[Array, '...']:
  """x / |x| along an axis, and 0 where x is."""
  return x * jax.lax.rsqrt(jnp.maximum((x * x).sum(axis, keepdims=True), 1e-12))


def unit_axis(names: tuple[str, ...]) -> int | None:
  """The axis, from the end, along which a matrix of these logical axes consists of vectors of the model's
  width; None for a vector, and for a matrix without that width.
  """
  is_matrix = len([name for name in names if name != 'layers']) > 1
  return names.index('embed') - len(names) if is_matrix and 'embed' in names else None
