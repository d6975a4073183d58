"""A classification head, for whole rows or for each token."""

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.head_transform import Transform
from tfm.layers.initializer import Factory
from tfm.layers.linear import Linear
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Bool, Float


class Pooled(nn.Module):
  """[transform](pool(x)) W + b → logits of the classes, in float32; for a pooling with several vectors, the
  mean of the logits of one head for each.

  Attributes:
    pooling: one of `POOLINGS`.
    transform: activation of a layer before the classes, BERT's 'tanh'; '': no such layer.
    classes: number of classes.
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
    """`valid` marks the tokens that are no padding."""
    logits = [
      self.head_logits(pool(x, valid), train, f'_{i}' if i else '')
      for i, pool in enumerate(POOLINGS[self.pooling])
    ]
    return sum(logits) / len(logits)

  def head_logits(self, y: Float[Array, '... D'], train: bool, which: str) -> Float[Array, '... N']:
    """The logits of one head, whose parameters' names end in `which`."""
    y = shard(y, *('batch', 'length')[: y.ndim - 1], 'embed')
    if self.transform:
      y = Transform(self.transform, self.width, None, self.initializer, self.dtype, name=f'transform{which}')(
        y
      )
    y = nn.Dropout(self.dropout, deterministic=not train)(y)
    return Linear(
      (self.width, self.classes),
      ('embed', 'classes'),
      self.initializer,
      dtype=self.dtype,
      name=f'classes{which}',
    )(y).astype(jnp.float32)


def mean(x: Float[Array, 'B T D'], valid: Bool[Array, 'B T']) -> Float[Array, 'B D']:
  """The mean over tokens that are no padding; zero for a row of padding."""
  weights = valid.astype(jnp.float32)[:, :, None]
  total = (x.astype(jnp.float32) * weights).sum(1)
  return (total / jnp.maximum(weights.sum(1), 1)).astype(x.dtype)


def first(x: Float[Array, 'B T D'], valid: Bool[Array, 'B T']) -> Float[Array, 'B D']:
  """[CLS] of BERT, the class token of ViT."""
  return x[:, 0]


def second(x: Float[Array, 'B T D'], valid: Bool[Array, 'B T']) -> Float[Array, 'B D']:
  """The distillation token of DeiT (Touvron et al. 2021, §4)."""
  return x[:, 1]


# name → for each head, (x, valid) → the vectors that it classifies.
POOLINGS = {
  'first': (first,),
  'first_two': (first, second),
  'mean': (mean,),
  'none': (lambda x, valid: x,),  # every token
}
# name → the class tokens that it needs before an image's patches.
CLASS_TOKEN_COUNT = {'first': 1, 'first_two': 2, 'mean': 0}
