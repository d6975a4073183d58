"""One block: a mixer and a feed-forward layer on a residual stream, with cross-attention between them or
without; or a mixer alone.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn

from tfm.layers.checkpoint_names import name_output
from tfm.mixers.protocol import Context, Memory
from tfm.parallel.sharding import shard
from tfm.residuals.protocol import Residual
from tfm.shapes import Array, Float


class Block(nn.Module):
  """Up to three branches on a residual stream: mixer(x), cross(x, memory) if there is a memory,
  feed_forward(x).

  `residual` adds them to the stream, with norms where `placement` puts them.

  Attributes:
    mixer, feed_forward, norm: factories; feed_forward is None if the block is its mixer alone.
    placement: one of `tfm.residuals.protocol.PLACEMENTS`.
    residual: how the branches are added.
    dropout: rate on the output of each branch.
    cross: factory of a second mixer, which attends to a memory (Vaswani et al. 2017, §3.1); None: no memory.
  """

  mixer: Callable
  feed_forward: Callable | None
  norm: Callable
  placement: str
  residual: Residual
  dropout: float
  cross: Callable | None = None

  @nn.compact
  def __call__(
    self, x: Float[Array, 'B T D'], memory: Memory | None, context: Context, cache: Any
  ) -> tuple[Float[Array, 'B T D'], Any]:
    """`memory` is projected once: a cache then holds its keys and values, and `memory` is None in later
    calls.
    """
    cached = cache is not None
    new_cache = dict(cache) if cached else {}

    def mix(y):
      y, new_cache['mixer'] = self.mixer(name='mixer')(y, None, context, new_cache.get('mixer'))
      return name_output(y, self, 'mixer')

    def cross(y):
      known = new_cache.get('cross') if memory is None else memory
      if known is None:
        raise ValueError(
          'a block with cross-attention needs a memory, and neither the arguments nor the cache hold one'
        )
      y, new_cache['cross'] = self.cross(name='cross')(y, known, context, None)
      return name_output(y, self, 'cross')

    def feed(y):
      y = self.feed_forward(name='feed_forward')(y, context.segments > 0)
      return name_output(y, self, 'feed_forward')

    branches = {'mixer': mix, 'cross': self.cross and cross, 'feed_forward': self.feed_forward and feed}
    branches = {name: f for name, f in branches.items() if f}
    x = self.residual(self, branches, x, context)
    return shard(x, 'batch', 'length', 'embed'), new_cache if cached else None

  @nn.nowrap
  def init_cache(self, batch: int, length: int) -> Any:
    """An empty cache for the mixer, and for the keys and values of a memory."""
    empty = {'mixer': self.mixer().init_cache(batch, length)}
    return empty | {'cross': None} if self.cross else empty

  def branch(self, name, f, x, context):
    """The output of a branch, which is added to the residual stream."""
    y = f(x if self.placement == 'post' else self.norm(name=f'{name}_norm')(x))
    if self.placement == 'sandwich':
      y = self.norm(name=f'{name}_norm_after')(y)
    return self.apply_dropout(y, context)

  def apply_dropout(self, y, context):
    return nn.Dropout(self.dropout, deterministic=not context.train)(y)
