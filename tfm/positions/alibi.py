"""Linear penalties on distance."""

import functools
import math

import jax.numpy as jnp
from jax.tree_util import Partial

from tfm.positions.protocol import Position
from tfm.shapes import Array, Float, Int


class Alibi(Position):
  """logits -= slope[head] · |q - k|, with fixed slopes (Press et al. 2022, §3).

  For past keys this is the paper's formula; for later ones it is the symmetric form that encoders
  use, so there is nothing to choose. Slopes are kept in float32.

  Attributes:
    exponent: of the gentlest slope: n heads, n a power of two, have the slopes 2^(-exponent/n),
      2^(-2·exponent/n) … 2^(-exponent); 8 in the paper. Other numbers of heads take those of the power
      below, then every other one of the power above.

  Raises (from `check`):
    ValueError: for an exponent not above 0.
  """

  exponent: float = 8.0

  def check(self):
    if self.exponent <= 0:
      raise ValueError(f'exponent={self.exponent} must be above 0; 8 is the published one')

  def bias(self, shared):
    return Partial(functools.partial(penalties, slopes=slopes(self.heads, self.exponent)))


def slopes(heads: int, exponent: float) -> tuple[float, ...]:
  """Those of the largest power of two within `heads`, then every other one of twice that power."""
  power = 2 ** int(math.log2(heads))
  own = [2 ** (-exponent * i / power) for i in range(1, power + 1)]
  between = [2 ** (-exponent * (i - 0.5) / power) for i in range(1, power + 1)]
  return tuple((own + between)[:heads])


def penalties(
    q: Float[Array, 'B K G T C'], k: Float[Array, 'B K S C'],
    q_positions: Int[Array, 'B T'], k_positions: Int[Array, 'B S'], slopes: tuple[float, ...],
) -> Float[Array, 'B K G T S']:
  """-slope · |q - k|."""
  distances = jnp.abs(q_positions[:, :, None] - k_positions[:, None, :]).astype(jnp.float32)
  slope = jnp.asarray(slopes, jnp.float32).reshape(1, k.shape[1], -1, 1, 1)
  return -slope * distances[:, None, None]
