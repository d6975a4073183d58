"""A head that classifies: whole rows, or each of their tokens."""

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.initializer import Factory
from tfm.layers.linear import Linear
from tfm.layers.transform import Transform
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Bool, Float


class Pooled(nn.Module):
  """[transform](pool(x)) W + b → logits of the classes, in float32.

  Attributes:
    pooling: one of `POOLINGS`.
    transform: activation of a layer before the classes, BERT's 'tanh'; '': no such layer.
    classes: how many there are.
    width: D; dropout: rate before the classes; initializer, dtype: of the projections.
  """

  pooling: str
  transform: str
  classes: int
  width: int
  dropout: float
  initializer: Factory
  dtype: jnp.dtype

  @nn.compact
  def __call__(
      self, x: Float[Array, 'B T D'], valid: Bool[Array, 'B T'], train: bool
  ) -> Float[Array, 'B N'] | Float[Array, 'B T N']:
    """`valid`: which tokens are no padding."""
    y = POOLINGS[self.pooling](x, valid)
    y = shard(y, *('batch', 'length')[:y.ndim - 1], 'embed')
    if self.transform:
      y = Transform(self.transform, self.width, None, self.initializer, self.dtype, name='transform')(y)
    y = nn.Dropout(self.dropout, deterministic=not train)(y)
    return Linear((self.width, self.classes), ('embed', 'classes'), self.initializer, dtype=self.dtype,
                  name='classes')(y).astype(jnp.float32)


def mean(x: Float[Array, 'B T D'], valid: Bool[Array, 'B T']) -> Float[Array, 'B D']:
  """Of the tokens that are no padding; zero for a row that is all padding."""
  weights = valid.astype(jnp.float32)[:, :, None]
  total = (x.astype(jnp.float32) * weights).sum(1)
  return (total / jnp.maximum(weights.sum(1), 1)).astype(x.dtype)


# name → (x, which tokens are no padding) → what is classified.
POOLINGS = {
  'first': lambda x, valid: x[:, 0],   # [CLS] of BERT, the class token of ViT
  'mean': mean,
  'none': lambda x, valid: x,          # each token for itself
}
