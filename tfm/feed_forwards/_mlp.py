"""The position-wise feed-forward layer, plain and gated."""

from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn

from tfm.feed_forwards.protocol import FeedForward
from tfm.layers.linear import Linear
from tfm.layers.recomputation import recompute
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

    def lower(self, *projections):
      y = shard(self.combine(*projections), 'batch', 'length', 'mlp')
      return Linear(
        (self.hidden, self.width),
        ('mlp', 'embed'),
        self.output_initializer,
        bias=self.bias,
        dtype=self.dtype,
        name='down',
      )(y)

    # The backward pass has the projections anyway, and an activation costs less than to keep its result.
    return recompute(lower)(self, *map(project, self.projections()))

  @property
  def transformed_shapes(self):
    return {name: ((self.hidden,), ('mlp',)) for name in self.projections()}

  @classmethod
  def projections(cls) -> tuple[str, ...]:
    """The names of the arguments of `combine`."""
    return ('up', 'gate') if cls.is_gated else ('up',)

  @classmethod
  def combine(
    cls, up: Float[Array, '... F'], gate: Float[Array, '... F'] | None = None
  ) -> Float[Array, '... F']:
    """act(up), or act(up) ⊙ gate."""
    y = cls.activation(up)
    return y if gate is None else y * gate

  @classmethod
  def activate(cls, project: Callable[[str], Array]) -> Array:
    """`combine` of the projections, each of which `project` computes by its name."""
    return cls.combine(*map(project, cls.projections()))
