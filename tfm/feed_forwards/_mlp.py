"""The position-wise feed-forward layer, plain and gated."""

from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn

from tfm.feed_forwards.protocol import FeedForward
from tfm.layers.linear import Linear
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Bool, Float


class MLP(FeedForward):
  """act(x W + b) V + c (Vaswani et al. 2017, §3.3), or gated: (act(x W) ⊙ x U) V (Shazeer 2020).

  Attributes:
    activation: act.
  """

  activation: ClassVar[Callable[[Array], Array]]

  @nn.compact
  def __call__(self, x: Float[Array, 'B T D'], valid: Bool[Array, 'B T']) -> Float[Array, 'B T D']:
    del valid  # each token is computed independently, padding included

    def project(name):
      y = Linear(
        (self.width, self.hidden),
        ('embed', 'mlp'),
        self.initializer,
        bias=self.bias,
        dtype=self.dtype,
        name=name,
      )(x)
      return self.transform(name, y)

    y = shard(self.activate(project), 'batch', 'length', 'mlp')
    return Linear(
      (self.hidden, self.width),
      ('mlp', 'embed'),
      self.output_initializer,
      bias=self.bias,
      dtype=self.dtype,
      name='down',
    )(y)

  @property
  def transformed_shapes(self):
    names = ('up', 'gate') if self.is_gated else ('up',)
    return {name: ((self.hidden,), ('mlp',)) for name in names}

  @classmethod
  def activate(cls, project: Callable[[str], Array]) -> Array:
    """act(up), or act(up) ⊙ gate; `project` computes the projection of a name."""
    y = cls.activation(project('up'))
    return y * project('gate') if cls.is_gated else y
