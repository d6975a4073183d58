"""A learned bilinear form of query and key."""

import functools

import flax.linen as nn
import jax.numpy as jnp
from jax.tree_util import Partial

from tfm.layers.float32_gradients import einsum
from tfm.layers.initializer import lecun_normal
from tfm.parallel.sharding import with_logical_axes
from tfm.scores.protocol import Score
from tfm.shapes import Array, Float


class Bilinear(Score):
  """scale · qᵀ W k, the score "general" (Luong et al. 2015, eq. 8).

  W is [C C], shared by all heads of a layer; the paper has one head.

  Attributes:
    scale: factor on the product, 1 in the paper; 1/√C gives logits of the size of `dot`.
  """

  scale: float = 1.0

  @nn.compact
  def __call__(self):
    # Only one axis is named 'kv', because a mesh axis cannot shard both.
    weight = self.param(
      'weight',
      with_logical_axes(lecun_normal()((0,), (1,)), ('kv', 'rank')),
      (self.head_width, self.head_width),
      jnp.float32,
    )
    return Partial(functools.partial(bilinear, scale=self.scale), weight)


def bilinear(
  weight: Float[Array, 'C N'], q: Float[Array, 'B K G T C'], k: Float[Array, 'B K S N'], scale: float
) -> Float[Array, 'B K G T S']:
  """scale · qᵀ W k, accumulated in float32; projects the queries, of which decoding has fewer than keys."""
  q = einsum('BKGTC,CN->BKGTN', q, weight, jnp.float32)
  q = (scale * q).astype(k.dtype)
  return jnp.einsum('BKGTN,BKSN->BKGTS', q, k, preferred_element_type=jnp.float32)
