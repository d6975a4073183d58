"""One block: a mixer and a feed-forward layer on a residual stream, with cross-attention between them or without;
or a mixer alone."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn

from tfm.mixers.protocol import Context, Memory
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Float


class Block(nn.Module):
  """x + mixer(x), then x + cross(x, memory) where there is a memory, then x + feed_forward(x), with norms
  where `placement` puts them.

    pre:       x + f(norm(x))            (Xiong et al. 2020)
    post:      norm(x + f(x))            (Vaswani et al. 2017, §3.1)
    sandwich:  x + norm(f(norm(x)))      (Ding et al. 2021, CogView; Gemma Team 2024, Gemma 2, §2)

  `residual` says whether one is added after another, or all at once to the same x, for 'pre' only:

    parallel:           x + mixer(norm(x)) + feed_forward(norm'(x))   (Black et al. 2022, GPT-NeoX, §2.1)
    parallel_one_norm:  x + mixer(norm(x)) + feed_forward(norm(x))    (Wang & Komatsuzaki 2021, GPT-J)

  Attributes:
    mixer, feed_forward, norm: factories; no feed_forward: None.
    placement: one of `PLACEMENTS`; residual: one of `RESIDUALS`.
    dropout: rate on what each branch adds.
    cross: factory of a second mixer, which attends to a memory (Vaswani et al. 2017, §3.1); None: no memory.
  """

  mixer: Callable
  feed_forward: Callable | None
  norm: Callable
  placement: str
  residual: str
  dropout: float
  cross: Callable | None = None

  @nn.compact
  def __call__(
    self, x: Float[Array, 'B T D'], memory: Memory | None, context: Context, cache: Any
  ) -> tuple[Float[Array, 'B T D'], Any]:
    """`memory` is read once: with a cache, its keys and values are kept there, and it is None from then on."""
    cached = cache is not None
    kept = dict(cache) if cached else {}

    def mix(y):
      y, kept['mixer'] = self.mixer(name='mixer')(y, None, context, kept.get('mixer'))
      return y

    def cross(y):
      known = kept.get('cross') if memory is None else memory
      if known is None:
        raise ValueError('a block with cross-attention was given no memory, and its cache remembers none')
      y, kept['cross'] = self.cross(name='cross')(y, known, context, None)
      return y

    def feed(y):
      return self.feed_forward(name='feed_forward')(y, context.segments > 0)

    branches = {'mixer': mix, 'cross': self.cross and cross, 'feed_forward': self.feed_forward and feed}
    branches = {name: f for name, f in branches.items() if f}
    x = RESIDUALS[self.residual](self, branches, x, context)
    return shard(x, 'batch', 'length', 'embed'), kept if cached else None

  @nn.nowrap
  def init_cache(self, batch: int, length: int) -> Any:
    """An empty cache: of the mixer, and a place for what is kept of a memory."""
    empty = {'mixer': self.mixer().init_cache(batch, length)}
    return empty | {'cross': None} if self.cross else empty

  def branch(self, name, f, x, context):
    """What one of the branches adds to the residual stream."""
    y = f(x if self.placement == 'post' else self.norm(name=f'{name}_norm')(x))
    if self.placement == 'sandwich':
      y = self.norm(name=f'{name}_norm_after')(y)
    return self.dropped(y, context)

  def dropped(self, y, context):
    return nn.Dropout(self.dropout, deterministic=not context.train)(y)


def sequential(block, branches, x, context):
  """One after another."""
  for name, f in branches.items():
    x = x + block.branch(name, f, x, context)
    if block.placement == 'post':
      x = block.norm(name=f'{name}_norm')(x)
  return x


def parallel(block, branches, x, context):
  """All at once, each with a norm of its own."""
  return sum((block.branch(name, f, x, context) for name, f in branches.items()), x)


def parallel_one_norm(block, branches, x, context):
  """All at once, of one norm."""
  y = block.norm(name='norm')(x)
  return sum((block.dropped(f(y), context) for f in branches.values()), x)


RESIDUALS = {f.__name__: f for f in (sequential, parallel, parallel_one_norm)}
PLACEMENTS = ('pre', 'post', 'sandwich')
