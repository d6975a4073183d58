"""Learned positions on a grid, which may grow."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.initializer import normal
from tfm.parallel.sharding import shard, with_logical_axes
from tfm.positions._grid import Grid, make_grid
from tfm.positions.protocol import Position
from tfm.spec import NonNegativeFloat, Size


METHODS = 'bilinear', 'bicubic'


class Learned2D(Position):
  """x + W[position], W being a table for the tokens before the grid and for the grid, which is
  resized to the grid of the run (Dosovitskiy et al. 2021, §3.2, "2D interpolation").

  So a run at a higher resolution can use the parameters of a lower one: `original` is the grid on which
  they were trained. If both are equal, this is `learned`, parameter for parameter.

  Attributes:
    rows, columns: of the grid; the other tokens of data.length stand before it. Default: a square.
    original: (rows, columns) of the table; default: those of the run.
    method: 'bilinear', or 'bicubic' (Touvron et al. 2021, DeiT, §6, though by another cubic than PyTorch's).
    stddev: of the normal distribution that the table starts from.

  Raises (from `validate`):
    ValueError: for a grid that data.length does not hold, or an invalid table.
  """

  rows: Size | None = None
  columns: Size | None = None
  original: tuple[Size, Size] | None = None
  method: str = 'bilinear'
  stddev: NonNegativeFloat = 0.02

  examples = (
    'learned_2d(rows=3, columns=4)',
    'learned_2d(rows=2, columns=5, original=(3, 3), method="bicubic")',
  )

  def validate(self):
    self.grid
    if self.method not in METHODS:
      raise ValueError(f'method={self.method!r} is unknown; known: {", ".join(METHODS)}')

  @property
  def grid(self) -> Grid:
    return make_grid(self.rows, self.columns, self.length)

  @property
  def table(self) -> tuple[int, int]:
    """Rows and columns of the table."""
    return self.grid[:2] if self.original is None else self.original

  @property
  def max_positions(self):
    return self.length

  def fingerprint(self):
    rows, columns, before = self.grid
    return super().fingerprint() | dict(
      rows=rows, columns=columns, before=before, original=tuple(self.table), stddev=None
    )

  @nn.compact
  def embed(self, x, positions):
    grid, (rows, columns) = self.grid, self.table
    table = self.param(
      'table',
      with_logical_axes(normal(self.stddev)((0,), (1,)), ('table', 'embed')),
      (grid.before + rows * columns, self.width),
      jnp.float32,
    )
    if (rows, columns) != grid[:2]:
      patches = table[grid.before :].reshape(rows, columns, self.width)
      patches = jax.image.resize(patches, (*grid[:2], self.width), self.method, antialias=False)
      table = jnp.concatenate([table[: grid.before], patches.reshape(-1, self.width)])
    return x + shard(table[positions].astype(x.dtype), 'batch', 'length', 'embed')
