"""Rotary positions on a grid."""

import jax.numpy as jnp

from tfm.layers.rotary import angles, frequencies, rotate_pairs
from tfm.positions._grid import Grid, make_grid
from tfm.positions.protocol import Position
from tfm.spec import PositiveFloat, Size


class Rope2D(Position):
  """Rotates half the channel pairs of queries and keys by the row, and half by the column ("axial": Heo et
  al. 2024, RoPE-ViT, §3.2; Fang et al. 2023, EVA-02).

  Pair i < C/4 rotates by r · θᵢ, and pair C/4 + i by c · θᵢ, with θᵢ = theta^(-4i/C), so that q·k depends on
  the differences of rows and of columns only. Tokens before the grid are not rotated, nor is the first patch.

  Attributes:
    rows, columns: of the grid; the other tokens of data.length stand before it. Default: a square.
    theta: base of the wavelengths; 100 in RoPE-ViT, 10 000 in EVA-02.
    interleaved: whether the pairs are (2i, 2i + 1), as published; otherwise (i, i + C/2).

  Raises (from `validate`):
    ValueError: for a head width that is no multiple of 4, a grid that data.length does not hold, or theta
      not above 0.
  """

  rows: Size | None = None
  columns: Size | None = None
  theta: PositiveFloat = 100.0
  interleaved: bool = False

  examples = ('rope_2d(rows=3, columns=4)', 'rope_2d(rows=2, columns=5, theta=10_000, interleaved=True)')

  def validate(self):
    self.grid
    if self.head_width % 4:
      raise ValueError(
        f'rotates pairs of channels by row and by column, and the head width is {self.head_width} '
        '(model.width / model.heads); choose a multiple of 4'
      )

  @property
  def grid(self) -> Grid:
    return make_grid(self.rows, self.columns, self.length)

  def fingerprint(self):
    return super().fingerprint() | self.grid._asdict()

  def rotate(self, q, k, q_positions, k_positions):
    waves = frequencies(self.theta, self.head_width // 2)

    def rotate_grid(x, positions):
      row, column, _ = self.grid.coordinates(positions)
      pair_angles = jnp.concatenate([angles(row, waves), angles(column, waves)], -1)
      return rotate_pairs(x, pair_angles, self.interleaved)

    return rotate_grid(q, q_positions), rotate_grid(k, k_positions)
