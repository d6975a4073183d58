"""Rotary positions on a grid."""

import jax.numpy as jnp

from tfm.layers.rotary import angles, frequencies, rotated
from tfm.positions._grid import Grid, grid
from tfm.positions.protocol import Position


class Rope2D(Position):
  """Rotates half the channel pairs of queries and keys by the row, and half by the column ("axial": Heo et
  al. 2024, RoPE-ViT, §3.2; Fang et al. 2023, EVA-02).

  Pair i < C/4 turns by r · θᵢ, and pair C/4 + i by c · θᵢ, with θᵢ = theta^(-4i/C), so that q·k depends on
  the differences of rows and of columns only. Tokens before the grid are not rotated, nor is the first patch.

  Attributes:
    rows, columns: of the grid; the tokens before it are what is left of data.length. A square unless
      given.
    theta: base of the wavelengths; 100 in RoPE-ViT, 10 000 in EVA-02.
    interleaved: whether the pairs are (2i, 2i + 1), as published; otherwise (i, i + C/2).

  Raises (from `check`):
    ValueError: for a head width that is no multiple of 4, a grid that data.length does not hold, or theta
      not above 0.
  """

  rows: int | None = None
  columns: int | None = None
  theta: float = 100.0
  interleaved: bool = False

  examples = ('rope_2d(rows=3, columns=4)', 'rope_2d(rows=2, columns=5, theta=10_000, interleaved=True)')

  def check(self):
    self.grid
    if self.head_width % 4:
      raise ValueError(
        f'rotates pairs of channels by row and by column, and the head width is {self.head_width} '
        '(model.width / model.heads); choose a multiple of 4'
      )
    if not self.theta > 0:
      raise ValueError(f'theta={self.theta} must be above 0')

  @property
  def grid(self) -> Grid:
    return grid(self.rows, self.columns, self.length)

  def fingerprint(self):
    return super().fingerprint() | self.grid._asdict()

  def rotate(self, q, k, q_positions, k_positions):
    waves = frequencies(self.theta, self.head_width // 2)

    def turned(x, positions):
      row, column, _ = self.grid.coordinates(positions)
      return rotated(x, jnp.concatenate([angles(row, waves), angles(column, waves)], -1), self.interleaved)

    return turned(q, q_positions), turned(k, k_positions)
