"""Contextual positions: distances are counted in tokens that the query itself picks."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from tfm.layers.dot_product import scaled_dot
from tfm.layers.initializer import zeros
from tfm.layers.locations import Locations, distances, same_document
from tfm.parallel.sharding import with_logical_axes
from tfm.positions.protocol import Position
from tfm.shapes import Array, Float
from tfm.spec import Size


class CoPE(Position):
  """logits += q · e[p], where p counts gates from the key to the query (Golovneva et al. 2024).

    g_ij = σ(q_i · k_j / √C),  p_ij = min(Σ_{j ≤ r ≤ i} g_ir, rows - 1),
    e[p] = (p - ⌊p⌋) e[⌈p⌉] + (1 - p + ⌊p⌋) e[⌊p⌋]

  A gate is that of a token of the document, also where the mask hides it. Keys after the query have p = 0.
  The sums run over keys in the order of the row or the cache, so that whole rows of logits are needed. One
  table per layer, for all heads, which starts at zero, as in x-transformers; the logits may have another
  score, the gates are of scaled dot products.

  Attributes:
    rows: of e, the largest position and one.
  """

  rows: Size = 64

  examples = ('cope(rows=5)',)
  reads_content = True
  has_blockwise_bias = False

  @nn.compact
  def bias(self, table):
    initializer = with_logical_axes(zeros, ('table', 'kv'))
    return Partial(
      contextual_logits, self.param('table', initializer, (self.rows, self.head_width), jnp.float32)
    )


def contextual_logits(
  table: Float[Array, 'N C'],
  q: Float[Array, 'B K G T C'],
  k: Float[Array, 'B K S C'],
  q_locations: Locations,
  k_locations: Locations,
) -> Float[Array, 'B K G T S']:
  """The product of each query with every row, then between the two rows around the position of each key."""
  counted = same_document(q_locations.segments, k_locations.segments) & (
    distances(q_locations, k_locations) <= 0
  )
  gates = jax.nn.sigmoid(scaled_dot(q, k, q.shape[-1] ** -0.5))
  gates = jnp.where(counted[:, None, None], gates, 0)
  positions = jnp.minimum(jax.lax.cumsum(gates, axis=4, reverse=True), len(table) - 1)
  scores = jnp.einsum('BKGTC,NC->BKGTN', q, table.astype(q.dtype), preferred_element_type=jnp.float32)
  below = jnp.minimum(positions.astype(jnp.int32), max(len(table) - 2, 0))
  above = jnp.minimum(below + 1, len(table) - 1)
  low, high = (jnp.take_along_axis(scores, row, axis=-1) for row in (below, above))
  return low + (positions - below) * (high - low)
