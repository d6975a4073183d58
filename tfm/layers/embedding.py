"""Token embedding."""

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.float32_gradients import einsum, take_rows
from tfm.layers.initializer import Factory
from tfm.layers.linear import Linear
from tfm.parallel.sharding import shard, with_logical_axes
from tfm.shapes import Array, Float, Int


class Embedding(nn.Module):
  """x = scale · E[token]; `attend` applies the transpose, x · Eᵀ, for tied input and output embeddings
  (Press & Wolf 2017).

  With a `table_width` a narrower table is projected to the model width without bias, x = scale · E[token] ·
  W_in, and the transpose is x · W_out · Eᵀ, with a separate W_out (Zhang et al. 2022, OPT, of 350M; the
  released code).

  Attributes:
    rows: V, the vocabulary, rounded up if the mesh requires it.
    width: D; table_width: of the table; None, or D: there are no projections.
    initializer: of the table; projection: of the projections.
    dtype: compute type; the table stays in float32.
    scale: of the embedded tokens; √D in the first Transformer (Vaswani et al. 2017, §3.4).
    axis: the logical axis of the rows: 'vocab', or 'table' for a small table.
  """

  rows: int
  width: int
  initializer: Factory
  dtype: jnp.dtype
  scale: float = 1.0
  axis: str = 'vocab'
  table_width: int | None = None
  projection: Factory | None = None

  def setup(self):
    initializer, E = (
      # Rows are read, so that no axis is an input; the fans are those of logits, which may share the table.
      with_logical_axes(self.initializer((1,), (0,)), (self.axis, 'embed'), inputs=()),
      self.table_width or self.width,
    )
    self.table = self.param('table', initializer, (self.rows, E), jnp.float32)
    self.projects = E != self.width
    if self.projects:
      # Each gets parameters only if it is used; the second one only with tied embeddings.
      self.project_in, self.project_out = (
        Linear(shape, ('embed', 'mlp'), self.projection, bias=False, dtype=self.dtype)
        for shape in ((E, self.width), (self.width, E))
      )

  def __call__(self, tokens: Int[Array, 'B T']) -> Float[Array, 'B T D']:
    x = take_rows(self.table, tokens, self.dtype, self.axis)
    x = x if self.scale == 1 else self.scale * x
    if self.projects:
      x = self.project_in(shard(x, 'batch', 'length', None))
    return shard(x, 'batch', 'length', 'embed')

  def attend(self, x: Float[Array, '... D']) -> Float[Array, '... V']:
    if self.projects:
      x = self.project_out(x)
      x = shard(x, *('batch', 'length')[: x.ndim - 1], None)
    return einsum('...D,VD->...V', x.astype(self.dtype), self.table, jnp.float32)
