"""Attention sinks: first tokens that every token sees."""

import dataclasses

from tfm.masks.protocol import Mask
from tfm.spec import SizeOrZero


@dataclasses.dataclass(frozen=True)
class Sinks(Mask):
  """k < n: every token sees a document's first n tokens (Xiao et al. 2023, StreamingLLM, §3.2).

  The paper uses four sinks beside the last tokens, such as 1020: `causal & (window(1019) | sinks(4))`. It
  counts positions within its cache; here they are those of the document. For first tokens that also see all
  tokens use `global_tokens`; learned sink logits are a setting of the mixer `softmax`.

  Attributes:
    n: sink tokens.

  Raises:
    ValueError: if n is negative.
  """

  examples = ('sinks(2)',)

  n: SizeOrZero

  def __call__(self, q, k):
    return (k < self.n) & (q == q)
