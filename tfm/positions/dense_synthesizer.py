"""Logits that each query makes by itself, one for each position of a key."""

import flax.linen as nn
import jax.numpy as jnp
from jax.tree_util import Partial

from tfm.layers.initializer import lecun_normal, zeros
from tfm.layers.locations import Locations
from tfm.parallel.sharding import with_logical_axes
from tfm.positions._table import TablePosition
from tfm.shapes import Array, Float


class DenseSynthesizer(TablePosition):
  """logits += relu(q) · W[position of the key] + b[position of the key] (Tay et al. 2021, Synthesizer, §3.1:
  the dense one, F(x) = W relu(W_Q x) + b).

  With score='dot' it is the paper's mixture of synthesized and dot-product attention; with
  score='dot(scale=0.0)' it is synthesized attention alone, and the projection to keys remains without use.

  Attributes:
    rows: positions of keys, the paper's N; default: the length of the training sequences.

  Raises (from `validate`):
    ValueError: for fewer rows than the sequences have tokens.
  """

  reads_content = True
  has_blockwise_bias = True

  @nn.compact
  def bias(self, table):
    N, H = self.max_positions, self.heads
    weight = self.param(
      'table',
      with_logical_axes(lecun_normal()((2,), (0,)), ('table', 'heads', 'kv')),
      (N, H, self.head_width),
      jnp.float32,
    )
    offset = self.param('bias', with_logical_axes(zeros, ('table', 'heads')), (N, H), jnp.float32)
    return Partial(synthesize, weight, offset)


def synthesize(
  weight: Float[Array, 'N H C'],
  offset: Float[Array, 'N H'],
  q: Float[Array, 'B K G T C'],
  k: Float[Array, 'B K S C'],
  q_locations: Locations,
  k_locations: Locations,
) -> Float[Array, 'B K G T S']:
  """relu(q) with the row of each key's position, accumulated in float32."""
  B, K, G, _, C = q.shape
  at = k_locations.positions
  rows = weight.astype(q.dtype)[at].reshape(B, -1, K, G, C)
  logits = jnp.einsum('BKGTC,BSKGC->BKGTS', jnp.maximum(q, 0), rows, preferred_element_type=jnp.float32)
  return logits + offset[at].reshape(B, -1, K, G, 1).transpose(0, 2, 3, 4, 1)
