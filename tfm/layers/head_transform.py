"""A layer of the model's own width, between the trunk and what answers."""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.activation import ACTIVATIONS
from tfm.layers.initializer import Factory
from tfm.layers.linear import Linear
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Float


class Transform(nn.Module):
  """[norm](act(x W + b)): BERT's before the vocabulary has a norm, its pooler none (Devlin et al. 2019,
  code).

  Attributes:
    activation: one of `ACTIVATIONS`.
    width: D.
    norm: a factory; None: no norm.
    initializer, dtype: of the projection.
  """

  activation: str
  width: int
  norm: Callable | None
  initializer: Factory
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, x: Float[Array, '... D']) -> Float[Array, '... D']:
    y = Linear((self.width, self.width), ('embed', 'mlp'), self.initializer, dtype=self.dtype, name='dense')(
      x
    )
    y = ACTIVATIONS[self.activation](y)
    y = shard(y, *('batch', 'length')[: y.ndim - 1], 'embed')
    return self.norm(name='norm')(y) if self.norm else y
