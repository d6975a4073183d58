"""The score slot: the compatibility function between a query and a key."""

from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn


class Score(nn.Module, kw_only=True):
  """A linen module that returns the function `(q, k) -> logits` of one attention layer.

  Attributes:
    head_width: C, the channels of one head.
    default_scale: the factor on products q · k that the parametrization wants; None: 1/√C.
    supports_mup: whether it uses `default_scale` and its other parameters do not depend on the width.
    examples: specs that the conformance suite tries; a file whose bare name is a spec needs none.
    absorbs_key_projection: whether f(q, W k) = f(Wᵀ q, k) for every matrix W of any shape, so that a linear
      map of the keys can be applied to the queries instead.
  """

  examples: ClassVar[tuple[str, ...]] = ()
  absorbs_key_projection: ClassVar[bool] = False
  supports_mup: ClassVar[bool] = False

  head_width: int
  default_scale: float | None = None

  def validate(self) -> None:
    """Raises ValueError for an invalid setting, before anything is compiled."""

  def __call__(self) -> Callable:
    """Returns the function from `q [B K G T C]` and `k [B K S C]` to `logits [B K G T S]` in float32.

    It is a `jax.tree_util.Partial` whose leaves are the learned parameters, so that blockwise kernels can
    call it on blocks and differentiate with respect to them.
    """
    raise NotImplementedError(f'{type(self).__name__} must implement __call__')
