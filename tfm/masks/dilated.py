"""Sliding windows with gaps."""

import dataclasses

from tfm.masks.protocol import Mask, check_whole


@dataclasses.dataclass(frozen=True)
class Dilated(Mask):
  """q - k is a multiple of `step`, and at most `width` steps either way: the dilated sliding window
  (Beltagy et al. 2020, Longformer, §3.1, fig. 2c).

    |q - k| ≤ width · step  and  (q - k) mod step = 0

  A query sees itself, `width` keys before and `width` after, which reach width · step tokens far;
  `dilated(w, 1)` is `window(w)`. In the paper's words, a window of 2 · width with gaps of step - 1.

  Attributes:
    width: keys on each side.
    step: tokens from one key to the next.

  Raises:
    ValueError: for a negative width, or a step below 1.
  """

  examples = ('dilated(2, 3)',)
  relative = True

  width: int
  step: int

  def __post_init__(self):
    check_whole(self, width=0, step=1)

  def __call__(self, q, k):
    reach, distance = self.width * self.step, q - k
    return (distance % self.step == 0) & (-reach <= distance) & (distance <= reach)
