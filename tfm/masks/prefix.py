"""Prefixes."""

import dataclasses

import numpy as np

from tfm.masks.protocol import Mask
from tfm.shapes import Array, Int


@dataclasses.dataclass(frozen=True)
class Prefix(Mask):
  """k ≤ q or k < prefix: a document's first tokens are seen from everywhere in it, the rest causally
  (Liu et al. 2018, "Generating Wikipedia"; Raffel et al. 2020, fig. 4, "prefix LM").

  How many tokens the prefix has is data, a number for each document; it comes with the context.
  """

  required_fields = frozenset({'prefix'})

  def __call__(self, q, k):
    raise ValueError(
      "the mask 'prefix' is asked without the prefix lengths; `given(prefix)` puts them in place"
    )

  def bind_prefix(self, prefix):
    if prefix is None:
      raise ValueError(
        "the mask 'prefix' wants to know the prefix length of each document, and the context has none; "
        'an objective that draws them would do'
      )
    return _Given(prefix)

  def bounds(self, q, k, layout):
    pairs = np.broadcast_shapes(q.shape, k.shape)
    causal = np.full(pairs, False) if layout == 'arbitrary' else np.broadcast_to(k <= q, pairs)
    return causal, np.full(pairs, True)


@dataclasses.dataclass(frozen=True, eq=False)
class _Given(Mask):
  """The same with the lengths in place, shaped to meet q and k."""

  prefix: Int[Array, '*#N'] | int

  def __call__(self, q, k):
    return (k <= q) | (k < self.prefix)
