"""Sinusoidal positions on a grid."""

import jax.numpy as jnp

from tfm.layers.rotary import angles, frequencies
from tfm.parallel.sharding import shard
from tfm.positions._grid import Grid, grid
from tfm.positions.protocol import Position


class Sinusoidal2D(Position):
  """x + PE, half the channels telling the row r and half the column c (Chen et al. 2021, MoCo v3; He et al.
  2022, MAE; their code).

    PE = [sin(r θᵢ), cos(r θᵢ), sin(c θᵢ), cos(c θᵢ)],  θᵢ = theta^(-4i/D), i < D/4

  Tokens before the grid have none. In MAE the column comes first; the code of Beyer et al. 2022 has
  frequencies from 1 to 1 / theta itself.

  Attributes:
    rows, columns: of the grid; the tokens before it are what is left of data.length. A square unless
      given.
    theta: base of the wavelengths.

  Raises (from `check`):
    ValueError: for a width that is no multiple of 4, a grid that data.length does not hold, or theta not
      above 0.
  """

  rows: int | None = None
  columns: int | None = None
  theta: float = 10_000.0

  examples = ('sinusoidal_2d(rows=3, columns=4)', 'sinusoidal_2d(rows=2, columns=5, theta=100)')

  def check(self):
    self.grid
    if self.width % 4:
      raise ValueError(
        f'tells row and column each by sines and cosines, and model.width={self.width} is no multiple of '
        '4; choose one'
      )
    if not self.theta > 0:
      raise ValueError(f'theta={self.theta} must be above 0')

  @property
  def grid(self) -> Grid:
    return grid(self.rows, self.columns, self.length)

  def fingerprint(self):
    return super().fingerprint() | self.grid._asdict()

  def embed(self, x, positions):
    row, column, there = self.grid.coordinates(positions)
    waves = frequencies(self.theta, self.width // 2)
    made = [f(angles(place, waves)) for place in (row, column) for f in (jnp.sin, jnp.cos)]
    made = jnp.where(there[:, :, None], jnp.concatenate(made, -1), 0).astype(x.dtype)
    return x + shard(made, 'batch', 'length', 'embed')
