"""Rotary positions whose products decay with the distance."""

import math

import jax.numpy as jnp
import numpy as np

from tfm.layers.rotary import angles, frequencies, rotate_pairs
from tfm.positions.protocol import Position
from tfm.spec import PositiveFloat


# The smallest ζ of a pair is γ / (1 + γ), with the γ of the paper.
GAMMA = 0.4
# Queries and keys are scaled by no more than e^±40, so that products stay within float32 and bfloat16.
LARGEST_EXPONENT = 40.0


class XPos(Position):
  """Rotates as `rope(interleaved=True)`, and scales pair i of a query at m by ζᵢ^((m - c) / scale_base), and
  of a key at n by ζᵢ^-((n - c) / scale_base), so that their product decays as ζᵢ^((m - n) / scale_base):

    ζᵢ = (2i / C + 0.4) / 1.4,  θᵢ = theta^(-2i / C)

  (Sun et al. 2022, A Length-Extrapolatable Transformer). c, half the longest training sequence, cancels in
  every product and keeps the factors small. For causal models: the product with a later key grows instead.

  Attributes:
    theta: base of the wavelengths.
    scale_base: tokens after which a pair's product has decayed by ζᵢ; 512 in the released code.

  Raises (from `validate`):
    ValueError: for an odd head width, or sequences so long for scale_base that factors would overflow.
  """

  theta: PositiveFloat = 10_000.0
  scale_base: PositiveFloat = 512.0

  examples = ('xpos(scale_base=16)',)

  def validate(self):
    if self.head_width % 2:
      raise ValueError(
        f'rotates pairs of channels, and the head width is {self.head_width} (model.width / model.heads); '
        'choose an even one'
      )
    if self.length > self.max_positions:
      least = self.scale_base * self.length / self.max_positions
      raise ValueError(
        f'scale_base={self.scale_base} lets factors overflow on {self.length} tokens (data.length); '
        f'use at least {math.ceil(least) + 1}'
      )

  @property
  def max_positions(self) -> int:
    """Where the factors of the fastest decay reach their limit, on both sides of c."""
    reach = LARGEST_EXPONENT * self.scale_base / -math.log(GAMMA / (1 + GAMMA))
    return int(self.center + reach)

  @property
  def center(self) -> int:
    """c, the position whose factors are 1."""
    return self.length // 2

  def fingerprint(self):
    return super().fingerprint() | dict(center=self.center)

  def rotate(self, q, k, q_positions, k_positions):
    C = self.head_width
    waves = frequencies(self.theta, C)
    decays = np.log((np.arange(C // 2) * 2 / C + GAMMA) / (1 + GAMMA)).astype(np.float32) / self.scale_base

    def rotate(x, positions, sign):
      exponents = sign * (positions - self.center)[:, :, None].astype(jnp.float32) * decays[None, None]
      return rotate_pairs(x, angles(positions, waves), True, jnp.exp(exponents))

    return rotate(q, q_positions, 1), rotate(k, k_positions, -1)
