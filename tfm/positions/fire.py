"""A small network of the relative distance."""

import flax.linen as nn
import jax.numpy as jnp
from jax.tree_util import Partial

from tfm.layers import locations
from tfm.layers.initializer import constant, lecun_normal, ones, zeros
from tfm.layers.locations import Locations
from tfm.parallel.sharding import with_logical_axes
from tfm.positions.protocol import Position
from tfm.shapes import Array, Float
from tfm.spec import PositiveFloat, Size


class Fire(Position):
  """logits += f(ψ(|q - k|) / ψ(max(q, L))), ψ(x) = log(c x + 1) (Li et al. 2024, FIRE).

  f is a network 1 → hidden → H with ReLU. f, c and L are learned, separately for every layer. For q beyond L
  the input is at most 1 at any length, so f interpolates. As in the paper's code,
  c is |`steepness_scale`| and L is `threshold` · |`threshold_scale`|. f has no final bias: softmax
  would cancel it. Later keys are treated as earlier ones at the same distance.

  Attributes:
    hidden: units of f; 32 in the paper.
    threshold: initial L, in tokens; 512 in the paper.
    steepness: initial c; 0.1 in the paper.
  """

  hidden: Size = 32
  threshold: PositiveFloat = 512.0
  steepness: PositiveFloat = 0.1

  examples = ('fire(hidden=8, threshold=4.0)',)
  has_blockwise_bias = True

  @nn.compact
  def bias(self, table):
    def learned(name, initializer, axes, shape):
      return self.param(name, with_logical_axes(initializer, axes), shape, jnp.float32)

    start = constant(self.steepness)
    c = jnp.abs(learned('steepness_scale', start, (), ()))
    L = self.threshold * jnp.abs(learned('threshold_scale', ones, (), ()))
    mlp = (
      learned('weight_1', lecun_normal()((), (0,)), ('rank',), (self.hidden,)),
      learned('bias_1', zeros, ('rank',), (self.hidden,)),
      learned('weight_2', lecun_normal()((0,), (1,)), ('rank', 'heads'), (self.hidden, self.heads)),
    )
    return Partial(interpolation_bias, (c, L), mlp)


def interpolation_bias(
  scales: tuple[Float[Array, ''], Float[Array, '']],
  mlp: tuple[Float[Array, 'F'], Float[Array, 'F'], Float[Array, 'F H']],
  q: Float[Array, 'B K G T C'],
  k: Float[Array, 'B K S C'],
  q_locations: Locations,
  k_locations: Locations,
) -> Float[Array, 'B K G T S']:
  """f of every pair, in float32, of the scales (c, L) and the mlp (weight_1, bias_1, weight_2)."""
  (c, L), (weight_1, bias_1, weight_2) = scales, mlp
  distances = jnp.abs(locations.distances(q_locations, k_locations)).astype(jnp.float32)
  spans = jnp.maximum(q_locations.positions.astype(jnp.float32), L)[:, :, None]
  x = jnp.log1p(c * distances) / (jnp.log1p(c * spans) + 1e-6)
  weight_1, bias_1 = (vector.reshape(1, 1, 1, -1) for vector in (weight_1, bias_1))
  hidden = jnp.maximum(x[..., None] * weight_1 + bias_1, 0)
  logits = jnp.einsum('BTSF,FH->BHTS', hidden, weight_2)
  return logits.reshape(q.shape[0], k.shape[1], -1, *logits.shape[2:])
