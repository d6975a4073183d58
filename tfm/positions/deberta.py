"""Disentangled attention: content-to-position and position-to-content logits."""

import functools

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from tfm.layers import locations
from tfm.layers.initializer import normal
from tfm.layers.linear import Linear
from tfm.layers.locations import Locations
from tfm.norms.layernorm import LayerNorm
from tfm.parallel.sharding import with_logical_axes
from tfm.positions.protocol import Position
from tfm.shapes import Array, Float, Int
from tfm.spec import Epsilon, Size, SizeOrZero


class Deberta(Position):
  """logits = (q·k + q·K_δ + k·Q_δ) / √(C n), n terms, δ = bucket(q - k) (He et al. 2021, DeBERTa, eq. 4).

  K_δ and Q_δ are rows of one table of embeddings for all layers, projected for every head of each layer.
  `rotate` scales q by 1/√n, so that the score, which must divide by √C as dot does, gives the content term;
  the bias is the other two. In k·Q_δ the paper's eq. 4 uses the distance from key to query, its code and
  weights that from query to key, as here.

  The published versions: v1 is deberta(512); v2 and v3 are
  deberta(512, buckets=256, norm=True, share_qk_projections=True). The projection to keys has no bias: it
  would add the same to all keys of a query, which softmax cancels.

  Attributes:
    max_distance: in tokens; larger distances are treated as equal to it.
    buckets: on either side; half of them hold one distance each, half logarithmically more (v2's code);
      0: each distance has its own.
    c2p, p2c: whether there is a content-to-position term (q·K_δ), and a position-to-content term (k·Q_δ).
    norm: whether the table goes through a layer norm; epsilon: its.
    share_qk_projections: whether positions are projected by the parameters of queries and keys.

  Raises (from `validate`):
    ValueError: for neither term, a max_distance below 1, or buckets that are odd, fewer than 4, or no fewer
      than it.
  """

  max_distance: Size = 512
  buckets: SizeOrZero = 0
  c2p: bool = True
  p2c: bool = True
  norm: bool = False
  epsilon: Epsilon = 1e-7
  share_qk_projections: bool = False

  examples = (
    'deberta(max_distance=9, buckets=6, norm=True)',
    'deberta(max_distance=4, c2p=False)',
    'deberta(max_distance=4, p2c=False)',
  )
  has_blockwise_bias = True
  reads_content = True

  def validate(self):
    if not (self.c2p or self.p2c):
      raise ValueError('c2p=False and p2c=False leave no position; choose one, or the position "none"')
    if self.buckets and (self.buckets < 4 or self.buckets % 2 or self.buckets >= self.max_distance):
      raise ValueError(
        f'buckets={self.buckets} must be 0 (none) or an even number, 4 or more and below '
        f'max_distance={self.max_distance}'
      )

  @property
  def uses_qk_projections(self):
    return self.share_qk_projections

  @property
  def terms(self):
    """n, the content's own included."""
    return 1 + self.c2p + self.p2c

  def setup(self):
    # Created on first call: the table in the model's instance, the projections in the layer's.
    def project(bias):
      return Linear((self.width, self.heads, self.head_width), ('embed', 'heads', 'kv'), normal(), bias=bias)

    self.key, self.query = project(bias=False), project(bias=True)

  @nn.compact
  def compute_table(self):
    """The embedding of each bucket, [2 · buckets, D]."""
    rows = 2 * (self.buckets or self.max_distance)
    table = self.param(
      'table', with_logical_axes(normal()((0,), (1,)), ('table', 'embed')), (rows, self.width), jnp.float32
    )
    return LayerNorm(bias=True, epsilon=self.epsilon, name='table_norm')(table) if self.norm else table

  def rotate(self, q, k, q_positions, k_positions):
    return q * jnp.asarray(self.terms**-0.5, q.dtype), k

  def bias(self, table):
    function = functools.partial(disentangled_bias, bucketing=(self.max_distance, self.buckets))
    if self.share_qk_projections:
      queries, keys = table
      keys = jnp.repeat(keys, self.heads // keys.shape[1], axis=1)  # each for the queries that share it
    else:
      keys = self.key(table) if self.c2p else None
      queries = self.query(table) if self.p2c else None
    return Partial(function, (keys if self.c2p else None, queries if self.p2c else None))


def bucket(distances: Int[np.ndarray, 'N'], max_distance: int, buckets: int) -> Int[np.ndarray, 'N']:
  """The row of the table for each distance q - k, on the host."""
  half, reach = buckets // 2, buckets or max_distance
  size = np.abs(distances)
  if buckets:
    octaves = np.log(np.maximum(size, half) / half) / np.log((max_distance - 1) / half)
    far = half + np.ceil(octaves * (half - 1) - 1e-9).astype(int)
    size = np.where(size <= half, size, far)
  return np.clip(np.sign(distances) * size, -reach, reach - 1) + reach


def disentangled_bias(
  table: tuple[Float[Array, 'N H C'] | None, Float[Array, 'N H C'] | None],
  q: Float[Array, 'B K G T C'],
  k: Float[Array, 'B K S C'],
  q_locations: Locations,
  k_locations: Locations,
  bucketing: tuple[int, int],
) -> Float[Array, 'B K G T S']:
  """k·queries[δ] / √(C n) + q·keys[δ] / √C, of n terms with the content's own; q is scaled already.

  Args:
    table: (keys, queries), the projected embeddings of the buckets; None leaves a term out.
    bucketing: (max_distance, buckets) of `bucket`.
  """
  (keys, queries), (max_distance, buckets) = table, bucketing
  K, G, _, C = q.shape[1:]
  scale = ((1 + sum(x is not None for x in table)) * C) ** -0.5
  rows = jnp.asarray(bucket(np.arange(-max_distance, max_distance + 1), max_distance, buckets))
  distances = jnp.clip(-locations.distances(q_locations, k_locations), -max_distance, max_distance)
  index = rows[distances + max_distance][:, None, None]
  logits = 0
  if keys is not None:
    products = jnp.einsum(
      'BKGTC,NKGC->BKGTN', q, keys.reshape(-1, K, G, C).astype(q.dtype), preferred_element_type=jnp.float32
    )
    logits += C**-0.5 * jnp.take_along_axis(products, index, axis=-1)
  if queries is not None:
    products = jnp.einsum(
      'BKSC,NKGC->BKGSN', k, queries.reshape(-1, K, G, C).astype(k.dtype), preferred_element_type=jnp.float32
    )
    logits += scale * jnp.take_along_axis(products, index.swapaxes(-1, -2), axis=-1).swapaxes(-1, -2)
  return logits
