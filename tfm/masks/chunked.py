"""Attention within chunks."""

import dataclasses

from tfm.masks.protocol import Mask
from tfm.spec import Size


@dataclasses.dataclass(frozen=True)
class Chunked(Mask):
  """⌊q/n⌋ = ⌊k/n⌋: tokens see only their own chunk of n tokens; blockwise local attention.

  Qiu et al. 2019, "Blockwise self-attention", §3.1, with the identity as permutation; under `causal` the
  chunked attention of Llama 4.

  Attributes:
    n: tokens of a chunk.

  Raises:
    ValueError: if n is below 1.
  """

  examples = ('chunked(4)',)

  n: Size

  def __call__(self, q, k):
    return q // self.n == k // self.n

  def bounds(self, q, k, layout):
    if layout != 'packed':
      return super().bounds(q, k, layout)
    # The start of a document is unknown, but tokens of one chunk are less than n apart.
    return q == k, (q - self.n < k) & (k < q + self.n)
