"""First tokens that see all tokens and are seen by all."""

import dataclasses

from tfm.masks.protocol import Mask
from tfm.spec import SizeOrZero


@dataclasses.dataclass(frozen=True)
class GlobalTokens(Mask):
  """q < n or k < n: symmetric global attention of a document's first n tokens.

  Beltagy et al. 2020, Longformer, §3.1, "Global attention"; Zaheer et al. 2020, BigBird, §2, the internal
  construction ITC.

  Attributes:
    n: global tokens.

  Raises:
    ValueError: if n is negative.
  """

  examples = ('global_tokens(2)',)

  n: SizeOrZero

  def __call__(self, q, k):
    return (q < self.n) | (k < self.n)
