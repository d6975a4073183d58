"""Bidirectional attention within a prefix."""

import dataclasses

import numpy as np

from tfm.masks.protocol import Mask
from tfm.shapes import Array, Int


@dataclasses.dataclass(frozen=True)
class Prefix(Mask):
  """k ≤ q or k < prefix: tokens of the prefix are visible to the whole document, others causally.

  Liu et al. 2018, "Generating Wikipedia"; Raffel et al. 2020, fig. 4, "prefix LM". The prefix length of each
  document is data from the context; `bind_prefix` supplies it.
  """

  required_fields = frozenset({'prefix'})

  def __call__(self, q, k):
    raise ValueError(
      "the mask 'prefix' was evaluated without prefix lengths; call `bind_prefix(prefix)` first"
    )

  def bind_prefix(self, prefix):
    if prefix is None:
      raise ValueError(
        "the mask 'prefix' requires the prefix length of each document, and the context has none; "
        'use an objective that supplies them, such as prefix_lm'
      )
    return _BoundPrefixMask(prefix)

  def bounds(self, q, k, layout):
    pairs = np.broadcast_shapes(q.shape, k.shape)
    causal = np.full(pairs, False) if layout == 'arbitrary' else np.broadcast_to(k <= q, pairs)
    return causal, np.full(pairs, True)


@dataclasses.dataclass(frozen=True, eq=False)
class _BoundPrefixMask(Mask):
  """`prefix` with its lengths, in a shape that broadcasts with q and k."""

  prefix: Int[Array, '*#N'] | int

  def __call__(self, q, k):
    return (k <= q) | (k < self.prefix)
