"""Chunks that do not see each other."""

import dataclasses

from tfm.masks.protocol import Mask, check_whole


@dataclasses.dataclass(frozen=True)
class Chunked(Mask):
  """⌊q/n⌋ = ⌊k/n⌋: a document is cut into chunks of n tokens, each for itself: blockwise local attention
  (Qiu et al. 2019, "Blockwise self-attention", §3.1, with the identity as permutation; Llama 4's
  chunked attention, under `causal`).

  Attributes:
    n: tokens of a chunk.

  Raises:
    ValueError: if n is below 1.
  """

  examples = ('chunked(4)',)

  n: int

  def __post_init__(self):
    check_whole(self, n=1)

  def __call__(self, q, k):
    return q // self.n == k // self.n

  def bounds(self, q, k, layout):
    if layout != 'packed':
      return super().bounds(q, k, layout)
    # Where a document begins is not known, but what shares a chunk is less than a chunk apart.
    return q == k, (q - self.n < k) & (k < q + self.n)
