"""Tokens that lie on a grid, row by row, behind some that do not: where each stands."""

import math
from typing import NamedTuple

import jax.numpy as jnp

from tfm.shapes import Array, Bool, Int


class Grid(NamedTuple):
  """rows × columns tokens, and how many stand `before` them, such as a class token."""

  rows: int
  columns: int
  before: int

  def coordinates(
    self, positions: Int[Array, 'B T']
  ) -> tuple[Int[Array, 'B T'], Int[Array, 'B T'], Bool[Array, 'B T']]:
    """Row, column, and whether a position is on the grid at all; row and column are 0 where it is not."""
    there = positions >= self.before
    place = jnp.maximum(positions - self.before, 0)
    return place // self.columns, place % self.columns, there


def grid(rows: int | None, columns: int | None, length: int) -> Grid:
  """The grid of rows of `length` tokens; a square one, of all of them or all but the first or the first two,
  unless told.

  Raises:
    ValueError: if it has no room, or cannot be told.
  """
  if (rows is None) != (columns is None):
    raise ValueError(
      f'rows={rows} and columns={columns} are not both told; give both, or neither for a square'
    )
  if rows is None:
    side = math.isqrt(length)
    if side * side < length - 2 or side < 1:
      raise ValueError(
        f'data.length={length} is no square, nor one with a class token or two; give rows=… and columns=…'
      )
    rows = columns = side
  if min(rows, columns) < 1:
    raise ValueError(f'rows={rows} and columns={columns} must be at least 1')
  if rows * columns > length:
    raise ValueError(
      f'rows={rows} × columns={columns} are {rows * columns} tokens, and data.length={length}; give a '
      'smaller grid'
    )
  return Grid(rows, columns, length - rows * columns)
