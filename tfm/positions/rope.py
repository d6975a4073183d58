"""Rotary positions."""

import jax.numpy as jnp

from tfm.positions.protocol import Position
from tfm.shapes import Array, Float, Int


class Rope(Position):
  """Rotates channel pairs of queries and keys by an angle that grows with the position.

    (x₁, x₂) → (x₁ cos mθᵢ - x₂ sin mθᵢ, x₂ cos mθᵢ + x₁ sin mθᵢ),  θᵢ = theta^(-2i/C)

  so that q·k depends on positions only through their difference (Su et al. 2021, RoFormer, eq. 34).
  Channel i is paired with i + C/2, the published layout of GPT-NeoX and LLaMA checkpoints.
  Angles are computed in float32 whatever the compute type.

  Attributes:
    theta: base of the wavelengths; 10 000 in the paper.

  Raises (from `check`):
    ValueError: for an odd head width, or theta not above 0.
  """

  theta: float = 10_000.0

  def check(self):
    if self.head_width % 2:
      raise ValueError(f'rotates pairs of channels, and the head width is {self.head_width} '
                       f'(model.width / model.heads); choose an even one')
    if self.theta <= 0:
      raise ValueError(f'theta={self.theta} must be above 0')

  def rotate(self, q, k, q_positions, k_positions):
    return rotated(q, q_positions, self.theta), rotated(k, k_positions, self.theta)


def rotated(
    x: Float[Array, 'B T H C'], positions: Int[Array, 'B T'], theta: float
) -> Float[Array, 'B T H C']:
  """Rotates each head's channel pairs (i, i + C/2) by position · theta^(-2i/C)."""
  half = x.shape[-1] // 2
  frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
  angles = positions[:, :, None, None].astype(jnp.float32) * frequencies[None, None, None, :]
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)
