"""Full attention."""

import dataclasses

from tfm.masks.protocol import Mask


@dataclasses.dataclass(frozen=True)
class Full(Mask):
  """Every token sees every token: encoders and cross-attention (Vaswani et al. 2017, §3.2.3)."""

  relative = True

  def __call__(self, q, k):
    return (q == q) & (k == k)
