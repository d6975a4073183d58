"""Sliding windows."""

import dataclasses

from tfm.masks.protocol import Mask
from tfm.spec import SizeOrZero


@dataclasses.dataclass(frozen=True)
class Window(Mask):
  """q - left ≤ k ≤ q + right: local attention (Beltagy et al. 2020, §3.1).

  Both ends are included, as in `jax.nn.dot_product_attention` and FlashAttention: under
  `causal & window(255)` a token sees itself and 255 earlier tokens. `right` defaults to `left`.

  Raises:
    ValueError: if either side is negative.
  """

  examples = ('window(2)', 'window(3, 0)')
  relative = True

  left: SizeOrZero
  right: SizeOrZero | None = None

  def __call__(self, q, k):
    right = self.left if self.right is None else self.right
    return (q - self.left <= k) & (k <= q + right)
