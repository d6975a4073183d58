"""Sliding windows with gaps."""

import dataclasses

from tfm.masks.protocol import Mask
from tfm.spec import Size, SizeOrZero


@dataclasses.dataclass(frozen=True)
class Dilated(Mask):
  """The dilated sliding window (Beltagy et al. 2020, Longformer, §3.1, fig. 2c).

    |q - k| ≤ width · step  and  (q - k) mod step = 0

  A query sees itself and `width` keys on each side, up to width · step tokens away; `dilated(w, 1)` is
  `window(w)`. In the paper's terms, a window of 2 · width with gaps of step - 1.

  Attributes:
    width: keys on each side.
    step: tokens from one key to the next.

  Raises:
    ValueError: for a negative width, or a step below 1.
  """

  examples = ('dilated(2, 3)',)
  relative = True

  width: SizeOrZero
  step: Size

  def __call__(self, q, k):
    reach, distance = self.width * self.step, q - k
    return (distance % self.step == 0) & (-reach <= distance) & (distance <= reach)
