"""One learned logit a head and bucket of distances."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from tfm.layers import locations
from tfm.layers.initializer import normal
from tfm.layers.locations import Locations
from tfm.parallel.sharding import with_logical_axes
from tfm.positions.protocol import Position
from tfm.shapes import Array, Float, Int
from tfm.spec import NonNegativeFloat, Size


class T5(Position):
  """logits += table[bucket(k - q), head], one table for all layers (Raffel et al. 2020, §2.1).

  Half of the buckets hold one distance each, the other half logarithmically more, up to `max_distance`;
  larger distances share the last bucket. T5 does not scale q·k: its score is dot(scale=1.0).

  Attributes:
    buckets: rows of the table.
    max_distance: in tokens; larger distances are treated as equal to it.
    bidirectional: whether half of the buckets are for keys after the query, as in the encoder;
      otherwise those all share the bucket of distance 0.
    stddev: of the normal distribution that the table starts from.

  Raises (from `validate`):
    ValueError: for too few buckets, an odd number for two directions, or a max_distance within the
      buckets of one distance each.
  """

  buckets: Size = 32
  max_distance: Size = 128
  bidirectional: bool = False
  stddev: NonNegativeFloat = 0.02

  examples = ('t5(buckets=8, max_distance=9)', 't5(buckets=8, max_distance=9, bidirectional=True)')
  has_blockwise_bias = has_relative_bias = True

  def validate(self):
    directions = 2 if self.bidirectional else 1
    if self.buckets < 2 * directions or self.buckets % directions:
      least = 'an even number, 4' if self.bidirectional else '2'
      raise ValueError(f'buckets={self.buckets} must be {least} or more')
    exact = self.buckets // directions // 2
    if self.max_distance <= exact:
      raise ValueError(
        f'max_distance={self.max_distance} must be above {exact}, the distances that '
        f'have a bucket each of buckets={self.buckets}'
      )

  def fingerprint(self):
    return super().fingerprint() | dict(stddev=None)

  @nn.compact
  def compute_table(self):
    """The logit of each head at each distance, -max_distance … max_distance."""
    table = self.param(
      'table',
      with_logical_axes(normal(self.stddev)((0,), (1,)), ('table', 'heads')),
      (self.buckets, self.heads),
      jnp.float32,
    )
    distances = np.arange(-self.max_distance, self.max_distance + 1)
    return table[bucket(distances, self.buckets, self.max_distance, self.bidirectional)].T

  def bias(self, table):
    return Partial(lookup_by_distance, table)


def bucket(
  distances: Int[np.ndarray, 'N'], buckets: int, max_distance: int, bidirectional: bool
) -> Int[np.ndarray, 'N']:
  """The row of the table for each distance k - q, on the host: in float64, and once."""
  if bidirectional:
    half = buckets // 2
    return bucket(-np.abs(distances), half, max_distance, False) + np.where(distances > 0, half, 0)
  past = np.maximum(-distances, 0)
  exact = buckets // 2
  octaves = np.log(np.maximum(past, exact) / exact) / np.log(max_distance / exact)
  # The margin is for distances on the edge of a bucket, where a quotient of logarithms may fall short.
  far = exact + (octaves * (buckets - exact) + 1e-9).astype(int)
  return np.where(past < exact, past, np.minimum(far, buckets - 1))


def lookup_by_distance(
  logits: Float[Array, 'H N'],
  q: Float[Array, 'B K G T C'],
  k: Float[Array, 'B K S C'],
  q_locations: Locations,
  k_locations: Locations,
) -> Float[Array, 'B K G T S']:
  """logits[head, k - q], whose middle column is distance 0, clipped to the columns there are."""
  reach = logits.shape[1] // 2
  distances = jnp.clip(locations.distances(q_locations, k_locations), -reach, reach)
  found = jnp.moveaxis(logits[:, distances + reach], 0, 1)
  return found.reshape(q.shape[0], k.shape[1], -1, *found.shape[2:])
