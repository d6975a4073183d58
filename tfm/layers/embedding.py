"""Token embedding."""

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.initializer import Factory
from tfm.parallel.sharding import partitioned, shard
from tfm.shapes import Array, Float, Int


class Embedding(nn.Module):
  """x = scale · E[token]; `attend` reads it backwards, x · Eᵀ, where input and output are tied
  (Press & Wolf 2017).

  Attributes:
    rows: V, the vocabulary, rounded up where a mesh wants it.
    width: D.
    initializer: of the table.
    dtype: compute type; the table stays in float32.
    scale: of what goes in; √D in the first Transformer (Vaswani et al. 2017, §3.4).
    axis: what the rows are: tokens, or the rows of a small 'table'.
  """

  rows: int
  width: int
  initializer: Factory
  dtype: jnp.dtype
  scale: float = 1.0
  axis: str = 'vocab'

  def setup(self):
    initializer = partitioned(self.initializer((1,), (0,)), (self.axis, 'embed'))
    self.table = self.param('table', initializer, (self.rows, self.width), jnp.float32)

  def __call__(self, tokens: Int[Array, 'B T']) -> Float[Array, 'B T D']:
    # Whole rows where fsdp cuts them: an index over a table cut both ways makes XLA copy everything.
    table = shard(self.table.astype(self.dtype), self.axis, None)
    x = table[tokens] if self.scale == 1 else self.scale * table[tokens]
    return shard(x, 'batch', 'length', 'embed')

  def attend(self, x: Float[Array, '... D']) -> Float[Array, '... V']:
    return jnp.einsum('...D,VD->...V', x.astype(self.dtype), self.table.astype(self.dtype),
                      preferred_element_type=jnp.float32)
