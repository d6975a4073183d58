"""Sliding windows."""

import dataclasses

from tfm.masks.protocol import Mask, validate_integers


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

  left: int
  right: int | None = None

  def __post_init__(self):
    validate_integers(self, left=0, right=0)

  def __call__(self, q, k):
    right = self.left if self.right is None else self.right
    return (q - self.left <= k) & (k <= q + right)
