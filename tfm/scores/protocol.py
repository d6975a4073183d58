"""The score slot: the compatibility function between a query and a key."""

from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn


class Score(nn.Module):
  """Makes the function `(q, k) -> logits` of one attention layer.

  Attributes:
    head_width: C, the channels of one head.
    examples: specs that the conformance suite tries; a file whose bare name is a spec needs none.
    absorbs: whether f(q, W k) = f(Wᵀ q, k) for every matrix W, of any shape, so that a map of the keys can
      be moved to the queries.
  """

  examples: ClassVar[tuple[str, ...]] = ()
  absorbs: ClassVar[bool] = False

  head_width: int

  def check(self) -> None:
    """Raises ValueError, before anything is compiled, for a setting that cannot be honoured."""

  def __call__(self) -> Callable:
    """The function from `q [B K G T C]` and `k [B K S C]` to `logits [B K G T S]` in float32.

    A `jax.tree_util.Partial` whose leaves are the learned parameters, so that a blockwise kernel
    can call it block by block and differentiate them.
    """
    raise NotImplementedError(f'{type(self).__name__} must say how a query meets a key')
