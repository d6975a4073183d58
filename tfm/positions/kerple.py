"""Learned kernels of the distance."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from tfm.errors import suggest
from tfm.layers import locations
from tfm.layers.initializer import normal
from tfm.layers.locations import Locations
from tfm.parallel.sharding import with_logical_axes
from tfm.positions.protocol import Position
from tfm.shapes import Array, Float


class Kerple(Position):
  """logits -= a conditionally positive definite kernel of |q - k| (Chi et al. 2022, KERPLE).

    log:    r₁ · log(1 + r₂ |q - k|),  r₁, r₂ > 0
    power:  r₁ · |q - k|^r₂,           r₁ > 0, 0 < r₂ < 2

  r₁ and r₂ are learned for each head of each layer, as softplus of `scale_1` and `scale_2`; r₂ of
  'power' is 2 · sigmoid(`scale_2`). They start from N(0, 1), so that heads differ in how far they attend.

  Attributes:
    kind: 'log' or 'power'.

  Raises (from `validate`):
    ValueError: for another kind.
  """

  kind: str = 'log'

  examples = ('kerple', 'kerple("power")')
  has_blockwise_bias = has_relative_bias = True

  def validate(self):
    if self.kind not in KINDS:
      raise ValueError(f'kind={self.kind!r} is unknown; {suggest(self.kind, KINDS)}')

  @nn.compact
  def bias(self, table):
    kernel, constrain = KINDS[self.kind]
    first, second = (
      self.param(name, with_logical_axes(normal(1.0)((), (0,)), ('heads',)), (self.heads,), jnp.float32)
      for name in ('scale_1', 'scale_2')
    )
    return Partial(functools.partial(penalties, kernel=kernel), (jax.nn.softplus(first), constrain(second)))


def penalties(
  scales: tuple[Float[Array, 'H'], Float[Array, 'H']],
  q: Float[Array, 'B K G T C'],
  k: Float[Array, 'B K S C'],
  q_locations: Locations,
  k_locations: Locations,
  kernel,
) -> Float[Array, 'B K G T S']:
  """-r₁ · kernel(|q - k|, r₂), of the scales (r₁, r₂)."""
  distances = jnp.abs(locations.distances(q_locations, k_locations)).astype(jnp.float32)[:, None, None]
  r1, r2 = (r.reshape(1, k.shape[1], -1, 1, 1) for r in scales)
  return -r1 * kernel(distances, r2)


def logarithm(distances, r2):
  return jnp.log1p(r2 * distances)


def power(distances, r2):
  # Computed by the logarithm, but not of 0, whose gradient would be NaN.
  return jnp.where(distances > 0, jnp.exp(r2 * jnp.log(jnp.maximum(distances, 1))), 0)


# name → (kernel, function that maps a parameter to valid values of r₂).
KINDS = {'log': (logarithm, jax.nn.softplus), 'power': (power, lambda x: 2 * jax.nn.sigmoid(x))}
