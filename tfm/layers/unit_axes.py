"""Axes of length 1, which XLA drops from products."""

import jax.numpy as jnp

from tfm.shapes import Array


def unit_axes(x: Array) -> tuple[int, ...]:
  """Which of the first two axes have length 1, of three or more."""
  return tuple(axis for axis in (0, 1) if jnp.ndim(x) > 2 and x.shape[axis] == 1)


def drop_unit_axes(x: Array) -> Array:
  """x without its `unit_axes`."""
  return jnp.squeeze(x, unit_axes(x))
