"""Causal attention."""

import dataclasses

from tfm.masks.protocol import Mask


@dataclasses.dataclass(frozen=True)
class Causal(Mask):
  """k ≤ q: a token sees itself and earlier tokens (Vaswani et al. 2017, §3.2.3)."""

  relative = True

  def __call__(self, q, k):
    return k <= q
