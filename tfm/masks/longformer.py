"""A sliding window and some global tokens."""

import dataclasses

from tfm.masks.protocol import Mask
from tfm.spec import SizeOrZero


@dataclasses.dataclass(frozen=True)
class Longformer(Mask):
  """|q - k| ≤ window, or q or k among a document's first tokens (Beltagy et al. 2020, §3.1, fig. 2d).

  Equal to `window(window) | global_tokens(global_tokens)`. `window` counts one side, half of what the paper
  and its checkpoints call the window: 256 for their 512. The paper's separate projections for global
  attention are in the mixer `longformer`.

  Attributes:
    window: tokens on each side.
    global_tokens: first tokens that see all tokens and are seen by all.

  Raises:
    ValueError: if either is negative.
  """

  examples = ('longformer(2, 1)',)

  window: SizeOrZero
  global_tokens: SizeOrZero

  def __call__(self, q, k):
    near = (q - self.window <= k) & (k <= q + self.window)
    return near | (q < self.global_tokens) | (k < self.global_tokens)
