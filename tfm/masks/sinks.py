"""The tokens that every other may look back to."""

import dataclasses

from tfm.masks.protocol import Mask, check_whole


@dataclasses.dataclass(frozen=True)
class Sinks(Mask):
  """k < n: all see a document's first n tokens, the attention sinks (Xiao et al. 2023, StreamingLLM, §3.2).

  The paper keeps four beside the last tokens, such as 1020: `causal & (window(1019) | sinks(4))`. It
  counts positions within what it keeps; here they stay those of the document. A mask that also lets the
  first tokens see all is `global_tokens`; sinks that are learned logits are the softmax mixer's.

  Attributes:
    n: tokens.

  Raises:
    ValueError: if n is negative.
  """

  examples = ('sinks(2)',)

  n: int

  def __post_init__(self):
    check_whole(self, n=0)

  def __call__(self, q, k):
    return (k < self.n) & (q == q)
