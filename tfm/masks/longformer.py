"""A sliding window and some global tokens."""

import dataclasses

from tfm.masks.protocol import Mask, check_whole


@dataclasses.dataclass(frozen=True)
class Longformer(Mask):
  """|q - k| ≤ window, or q or k among a document's first tokens (Beltagy et al. 2020, §3.1, fig. 2d).

  It is `window(window) | global_tokens(global_tokens)` under the paper's name. `window` counts one
  side, half of what the paper and its checkpoints call the window: 256 for their 512. The paper
  projects queries, keys and values of global attention apart, which is a mixer's doing, no mask's.

  Attributes:
    window: tokens on each side.
    global_tokens: tokens that see all and are seen by all.

  Raises:
    ValueError: if either is negative.
  """

  examples = ('longformer(2, 1)',)

  window: int
  global_tokens: int

  def __post_init__(self):
    check_whole(self, window=0, global_tokens=0)

  def __call__(self, q, k):
    near = (q - self.window <= k) & (k <= q + self.window)
    return near | (q < self.global_tokens) | (k < self.global_tokens)
