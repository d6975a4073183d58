"""Sinusoidal positions on a grid."""

import jax.numpy as jnp

from tfm.layers.rotary import angles, frequencies
from tfm.parallel.sharding import shard
from tfm.positions._grid import Grid, make_grid
from tfm.positions.protocol import Position
from tfm.spec import PositiveFloat, Size


class Sinusoidal2D(Position):
  """x + PE, where half the channels encode the row r and half the column c (Chen et al. 2021, MoCo v3; He et
  al. 2022, MAE; their code).

    PE = [sin(r θᵢ), cos(r θᵢ), sin(c θᵢ), cos(c θᵢ)],  θᵢ = theta^(-4i/D), i < D/4

  Tokens before the grid get no encoding. In MAE the column comes first; the code of Beyer et al. 2022 has
  frequencies from 1 to 1 / theta itself.

  Attributes:
    rows, columns: of the grid; the other tokens of data.length stand before it. Default: a square.
    theta: base of the wavelengths.

  Raises (from `validate`):
    ValueError: for a width that is no multiple of 4, a grid that data.length does not hold, or theta not
      above 0.
  """

  rows: Size | None = None
  columns: Size | None = None
  theta: PositiveFloat = 10_000.0

  examples = ('sinusoidal_2d(rows=3, columns=4)', 'sinusoidal_2d(rows=2, columns=5, theta=100)')

  def validate(self):
    self.grid
    if self.width % 4:
      raise ValueError(
        f'encodes row and column by sines and cosines each, and model.width={self.width} is no multiple of '
        '4; choose one'
      )

  @property
  def grid(self) -> Grid:
    return make_grid(self.rows, self.columns, self.length)

  def fingerprint(self):
    return super().fingerprint() | self.grid._asdict()

  def embed(self, x, positions):
    row, column, on_grid = self.grid.coordinates(positions)
    rates = frequencies(self.theta, self.width // 2)
    waves = [f(angles(place, rates)) for place in (row, column) for f in (jnp.sin, jnp.cos)]
    encoding = jnp.where(on_grid[:, :, None], jnp.concatenate(waves, -1), 0).astype(x.dtype)
    return x + shard(encoding, 'batch', 'length', 'embed')
