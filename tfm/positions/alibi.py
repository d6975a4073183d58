"""Linear penalties on distance."""

import functools
import math

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from tfm.layers.locations import Locations, distances
from tfm.positions.protocol import Position
from tfm.shapes import Array, Float
from tfm.spec import PositiveFloat


class Alibi(Position):
  """logits -= scale · slope[head] · |q - k|, with fixed slopes (Press et al. 2022, §3).

  For past keys this is the paper's formula; for later ones it is the symmetric form that encoders
  use, and no option is needed. Slopes are in float32.

  Falcon's code computes slope · k of a key at position k in bfloat16, and divides it by √C with q · k
  (Almazrouei et al. 2023). That is scale=1/√C and rounded=True, as softmax ignores what all keys have in
  common:

    logits -= scale · |r(q) - r(k)|,  r(x) = bfloat16(bfloat16(slope[head]) · bfloat16(x))

  Attributes:
    exponent: of the gentlest slope: n heads, n a power of two, have the slopes 2^(-exponent/n),
      2^(-2·exponent/n) … 2^(-exponent); 8 in the paper. Other numbers of heads take those of the power
      below, then every other one of the power above.
    scale: a factor on the penalties; rounded: whether slopes and their products with positions are of
      bfloat16.

  Raises (from `validate`):
    ValueError: for an exponent or a scale not above 0.
  """

  exponent: PositiveFloat = 8.0
  scale: PositiveFloat = 1.0
  rounded: bool = False

  examples = 'alibi', 'alibi(scale=0.5, rounded=True)'
  has_blockwise_bias = True

  @property
  def has_relative_bias(self):
    return not self.rounded

  def bias(self, table):
    function = rounded_penalties if self.rounded else penalties
    return Partial(functools.partial(function, slopes=slopes(self.heads, self.exponent), scale=self.scale))


def slopes(heads: int, exponent: float) -> tuple[float, ...]:
  """The slopes of the largest power of two within `heads`, then every other one of twice that power."""
  power = 2 ** int(math.log2(heads))
  own = [2 ** (-exponent * i / power) for i in range(1, power + 1)]
  between = [2 ** (-exponent * (i - 0.5) / power) for i in range(1, power + 1)]
  return tuple((own + between)[:heads])


def penalties(
  q: Float[Array, 'B K G T C'],
  k: Float[Array, 'B K S C'],
  q_locations: Locations,
  k_locations: Locations,
  slopes: tuple[float, ...],
  scale: float,
) -> Float[Array, 'B K G T S']:
  """-scale · slope · |q - k|."""
  distance = jnp.abs(distances(q_locations, k_locations)).astype(jnp.float32)
  slope = scale * jnp.asarray(slopes, jnp.float32).reshape(1, k.shape[1], -1, 1, 1)
  return -slope * distance[:, None, None]


def rounded_penalties(
  q: Float[Array, 'B K G T C'],
  k: Float[Array, 'B K S C'],
  q_locations: Locations,
  k_locations: Locations,
  slopes: tuple[float, ...],
  scale: float,
) -> Float[Array, 'B K G T S']:
  """-scale · |r(q) - r(k)|."""

  def bfloat16(x):
    return jax.lax.reduce_precision(x.astype(jnp.float32), 8, 7)  # XLA may skip a cast there and back

  slope = bfloat16(jnp.asarray(slopes, jnp.float32)).reshape(1, k.shape[1], -1, 1)
  to, of = (bfloat16(slope * bfloat16(x.positions)[:, None, None]) for x in (q_locations, k_locations))
  return -scale * jnp.abs(to[..., :, None] - of[..., None, :])
