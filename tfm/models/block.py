"""One block: a mixer and a feed-forward layer on a residual stream, with cross-attention between them or
without; or a mixer alone.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.checkpoint_names import name_output
from tfm.layers.learned_scale import LearnedScale
from tfm.mixers.protocol import Context, Memory
from tfm.parallel.sharding import shard
from tfm.residuals.protocol import Residual
from tfm.shapes import Array, Float


# The variable collection that holds hidden states.
HIDDEN = 'hidden'


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
    canon: place → factory of a Canon layer: on the normalized input of a branch, such as 'mixer', or on a
      projection in it, such as 'mixer_q'.
    value_residual: factory of a `ValueResidual`; None: no value residual.
    shares_keys: whether blocks of the stack attend to keys and values of others.
    own_keys: whether this one has its own; if not, it attends to those of the last earlier one that has.
    scales: projection in a branch, such as 'feed_forward_up' → the arguments of its `LearnedScale`.

  With a value residual or shared keys, x is a `Stream`.
  """

  mixer: Callable
  feed_forward: Callable | None
  norm: Callable
  placement: str
  residual: Residual
  dropout: float
  cross: Callable | None = None
  canon: Mapping[str, Callable] = dataclasses.field(default_factory=dict)
  value_residual: Callable | None = None
  shares_keys: bool = False
  own_keys: bool = True
  scales: Mapping[str, tuple[int, str, float]] = dataclasses.field(default_factory=dict)

  @nn.compact
  def __call__(
    self, x: Float[Array, 'B T D'], memory: Memory | None, context: Context, cache: Any
  ) -> tuple[Float[Array, 'B T D'], Any]:
    """`memory` is projected once: a cache then holds its keys and values, and `memory` is None in later
    calls.
    """
    cached = cache is not None
    new_cache = dict(cache) if cached else {}
    stream = x if self.value_residual or self.shares_keys else None
    x = x if stream is None else stream.x

    def apply_canon(place, y):
      if place not in self.canon:
        return y
      name, unbroken = f'{place}_canon', not cached and context.layout != 'arbitrary'
      layer = self.canon[place](name=name, parent=self)
      y, new_cache[name] = layer(y, context.segments, new_cache.get(name), unbroken)
      return y

    def inside(branch, x):
      """What a branch of input x applies to its projections, if the block has anything for them."""

      def transform(name, y):
        nonlocal stream
        place = f'{branch}_{name}'
        y = apply_canon(place, y)
        if place in self.scales:
          y = LearnedScale(*self.scales[place], name=f'{place}_scale', parent=self)(y)
        if (branch, name) == ('mixer', 'v') and self.value_residual:
          y, stream = self.value_residual(name='value_residual', parent=self)(y, x, stream)
        return y

      is_needed = any(place.startswith(f'{branch}_') for place in (*self.canon, *self.scales))
      return {'transform': transform} if is_needed or (branch == 'mixer' and self.value_residual) else {}

    def mix(y):
      nonlocal stream
      y = apply_canon('mixer', y)
      mixer = self.mixer(name='mixer', **inside('mixer', y))
      if not self.own_keys:
        return name_output(mixer(y, stream.keys, context, None)[0], self, 'mixer')
      # Attention to a memory returns its keys and values; that to oneself as a memory is self-attention.
      itself = Memory(y, context) if self.shares_keys and not cached else None
      y, new_cache['mixer'] = mixer(y, itself, context, new_cache.get('mixer'))
      if self.shares_keys:
        stream = stream.replace(keys=without_index(new_cache['mixer']))
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
      y = apply_canon('feed_forward', y)
      layer = self.feed_forward(name='feed_forward', **inside('feed_forward', y))
      return name_output(layer(y, context.segments > 0), self, 'feed_forward')

    branches = {'mixer': mix, 'cross': self.cross and cross, 'feed_forward': self.feed_forward and feed}
    branches = {name: f for name, f in branches.items() if f}
    x = self.residual(self, branches, x, context)
    axes = (None,) * (x.ndim - 3)  # of several residual streams
    x = shard(x, 'batch', 'length', *axes, 'embed')
    sow_hidden(self, 'output', x.sum(2) if axes else x)
    return x if stream is None else stream.replace(x=x), new_cache if cached else None

  @property
  def supports_trees(self) -> bool:
    """Whether it honours `Context.lineage`."""
    return not self.canon and not self.shares_keys and self.mixer().supports_trees

  @nn.nowrap
  def init_cache(self, batch: int, length: int) -> Any:
    """An empty cache for the mixer, for Canon layers, and for the keys and values of a memory."""
    empty = {'mixer': self.mixer().init_cache(batch, length) if self.own_keys else {}}
    empty |= {f'{place}_canon': make().init_window(batch) for place, make in self.canon.items()}
    return empty | {'cross': None} if self.cross else empty

  def branch(self, name, f, x, context):
    """The output of a branch, which is added to the residual stream."""
    y = f(self.norm(name=f'{name}_norm')(x) if self.placement in ('pre', 'sandwich') else x)
    if self.placement in ('sandwich', 'res_post'):
      y = self.norm(name=f'{name}_norm_after')(y)
    return self.apply_dropout(y, context)

  def apply_dropout(self, y, context):
    return nn.Dropout(self.dropout, deterministic=not context.train)(y)


def sow_hidden(module: nn.Module, name: str, x: Float[Array, 'B T D']) -> None:
  """Stores hidden states in the collection `HIDDEN` if a caller made it mutable."""
  if module.is_mutable_collection(HIDDEN) and not module.is_initializing():
    module.put_variable(HIDDEN, name, x)


def without_index(keys: Any) -> Any:
  """A `TokenCache` that nothing is appended to, so that all its arrays have rows."""
  return keys.replace(index=jnp.zeros(len(keys.positions), jnp.int32))
