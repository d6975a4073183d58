"""Rows and columns of tokens on a grid, such as image patches, after some tokens that are on none."""

import math
from typing import NamedTuple

import jax.numpy as jnp

from tfm.shapes import Array, Bool, Int


class Grid(NamedTuple):
  """A grid of rows × columns tokens, after `before` other tokens, such as a class token."""

  rows: int
  columns: int
  before: int

  def coordinates(
    self, positions: Int[Array, 'B T']
  ) -> tuple[Int[Array, 'B T'], Int[Array, 'B T'], Bool[Array, 'B T']]:
    """Row, column, and whether a position is on the grid; row and column are 0 if it is not."""
    on_grid = positions >= self.before
    place = jnp.maximum(positions - self.before, 0)
    return place // self.columns, place % self.columns, on_grid


def make_grid(rows: int | None, columns: int | None, length: int) -> Grid:
  """The grid of sequences of `length` tokens. Default: a square of all tokens, or of all but the first one or
  two.

  Raises:
    ValueError: if the grid has more tokens than the sequence, or no square fits.
  """
  if (rows is None) != (columns is None):
    raise ValueError(
      f'rows={rows} and columns={columns} must be set together; set both, or neither for a square'
    )
  if rows is None:
    side = math.isqrt(length)
    if side * side < length - 2 or side < 1:
      raise ValueError(
        f'data.length={length} is no square number, nor one plus one or two class tokens; '
        'set rows=… and columns=…'
      )
    rows = columns = side
  if min(rows, columns) < 1:
    raise ValueError(f'rows={rows} and columns={columns} must be at least 1')
  if rows * columns > length:
    raise ValueError(
      f'rows={rows} × columns={columns} are {rows * columns} tokens, and data.length={length}; set a '
      'smaller grid'
    )
  return Grid(rows, columns, length - rows * columns)
