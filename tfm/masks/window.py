"""Sliding windows."""

import dataclasses

from tfm.masks.protocol import Mask


@dataclasses.dataclass(frozen=True)
class Window(Mask):
  """q - left ≤ k ≤ q + right: local attention (Beltagy et al. 2020, §3.1).

  Both ends count, as in `jax.nn.dot_product_attention` and FlashAttention: under
  `causal & window(255)` a token sees itself and 255 before. `right` is `left` unless given.

  Raises:
    ValueError: if either side is negative.
  """

  examples = ('window(2)', 'window(3, 0)')
  relative = True

  left: int
  right: int | None = None

  def __post_init__(self):
    for name, value in (('left', self.left), ('right', self.right)):
      if value is not None and (not isinstance(value, int) or value < 0):
        raise ValueError(f'{name}={value!r} must be a whole number of tokens, 0 or more')

  def __call__(self, q, k):
    right = self.left if self.right is None else self.right
    return (q - self.left <= k) & (k <= q + right)
