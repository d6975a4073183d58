"""Learned logits for each pair of positions, whatever the tokens there."""

import flax.linen as nn
import jax.numpy as jnp
from jax.tree_util import Partial

from tfm.layers.initializer import normal
from tfm.layers.locations import Locations
from tfm.parallel.sharding import with_logical_axes
from tfm.positions._table import TablePosition
from tfm.shapes import Array, Float
from tfm.spec import NonNegativeFloat


class RandomSynthesizer(TablePosition):
  """logits += R[head, position of the query, position of the key], one R for each layer (Tay et al. 2021,
  Synthesizer, §3.2).

  With score='dot' it is the paper's mixture of synthesized and dot-product attention; with
  score='dot(scale=0.0)' it is synthesized attention alone, and the projections to queries and keys remain
  without use.

  Attributes:
    rows: positions, the paper's N; default: the length of the training sequences.
    stddev: of the normal distribution that R starts from.

  Raises (from `validate`):
    ValueError: for fewer rows than the sequences have tokens.
  """

  stddev: NonNegativeFloat = 1.0

  has_blockwise_bias = True

  def fingerprint(self):
    return super().fingerprint() | dict(stddev=None)

  @nn.compact
  def bias(self, table):
    # Only one axis is named 'table', because a mesh axis cannot shard both.
    initializer = with_logical_axes(normal(self.stddev)((0,), (1,)), ('heads', 'table', 'rank'))
    N = self.max_positions
    return Partial(look_up, self.param('table', initializer, (self.heads, N, N), jnp.float32))


def look_up(
  table: Float[Array, 'H N N'],
  q: Float[Array, 'B K G T C'],
  k: Float[Array, 'B K S C'],
  q_locations: Locations,
  k_locations: Locations,
) -> Float[Array, 'B K G T S']:
  """The logit of each pair of positions."""
  pairs = table[:, q_locations.positions[:, :, None], k_locations.positions[:, None, :]]  # [H B T S]
  return pairs.swapaxes(0, 1).reshape(*q.shape[:3], *pairs.shape[2:])
