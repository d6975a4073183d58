"""Relative positions of Shaw et al.: a learned key for every distance."""

import flax.linen as nn
import jax.numpy as jnp
from jax.tree_util import Partial

from tfm.layers import locations
from tfm.layers.initializer import normal
from tfm.layers.locations import Locations
from tfm.parallel.sharding import with_logical_axes
from tfm.positions.protocol import Position
from tfm.shapes import Array, Float
from tfm.spec import Size


class Shaw(Position):
  """logits += q · a[clip(k - q, -max_distance, max_distance)] / √C (Shaw et al. 2018, eq. 4).

  One table per layer. The paper's second table, of values, does not act on logits and is left out; its
  ablation (table 3) finds the keys alone as good.

  Attributes:
    max_distance: in tokens; larger distances are treated as equal to it; 16 in the base model.
    by_head: whether every head has its own table (the paper's base model) or all share one.

  Raises (from `validate`):
    ValueError: for a max_distance below 1.
  """

  max_distance: Size = 16
  by_head: bool = False

  examples = ('shaw(max_distance=4)', 'shaw(max_distance=4, by_head=True)')
  has_blockwise_bias = True
  reads_content = True

  @nn.compact
  def bias(self, table):
    heads, axes = ((self.heads,), ('heads',)) if self.by_head else ((), ())
    table = self.param(
      'table',
      with_logical_axes(normal()((0,), (1,)), ('table', *axes, 'kv')),
      (2 * self.max_distance + 1, *heads, self.head_width),
      jnp.float32,
    )
    return Partial(distance_logits, table)


def distance_logits(
  table: Float[Array, 'N C'] | Float[Array, 'N H C'],
  q: Float[Array, 'B K G T C'],
  k: Float[Array, 'B K S C'],
  q_locations: Locations,
  k_locations: Locations,
) -> Float[Array, 'B K G T S']:
  """The product of each query with every row, then the row of each key; the middle row is distance 0."""
  K, G, _, C = q.shape[1:]
  reach = table.shape[0] // 2
  rows = (
    table.reshape(table.shape[0], K, G, C)
    if table.ndim == 3
    else jnp.broadcast_to(table[:, None, None], (table.shape[0], K, G, C))
  )
  scores = jnp.einsum('BKGTC,NKGC->BKGTN', q, rows.astype(q.dtype), preferred_element_type=jnp.float32)
  distances = jnp.clip(locations.distances(q_locations, k_locations), -reach, reach)
  return jnp.take_along_axis(scores, (distances + reach)[:, None, None], axis=-1) * C**-0.5
