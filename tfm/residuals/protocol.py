"""The residual slot: how the branches of a block are added to the residual stream."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

from tfm.shapes import Array, Float


# Where a norm stands: before a branch, after the addition, or before and after the branch.
PLACEMENTS = ('pre', 'post', 'sandwich')
Branch = Callable[[Float[Array, 'B T D']], Float[Array, 'B T D']]


class ResidualBlock(Protocol):
  """What a residual may use of the block: its norm placement and its parts, which have parameters of the
  block.

  Attributes:
    placement: one of `PLACEMENTS`; norm: the factory of the block's norms.
  """

  placement: str
  norm: Callable

  def branch(self, name: str, f: Branch, x: Float[Array, 'B T D'], context: Any) -> Float[Array, 'B T D']:
    """f of the normalized x, as `placement` requires, with dropout."""

  def apply_dropout(self, y: Float[Array, 'B T D'], context: Any) -> Float[Array, 'B T D']:
    """y with dropout."""


@dataclasses.dataclass(frozen=True)
class Residual(abc.ABC):
  """A frozen, hashable rule that adds branches to a residual stream.

  Attributes:
    examples: specs that the conformance suite tries; a file whose bare name is a spec needs none.
    placements: the norm placements that it defines.
    required_branches: the names of exactly the branches it is defined for; None: any.
    looks_ahead: whether its output depends on later tokens, which a decoder's must not.
  """

  examples: ClassVar[tuple[str, ...]] = ()
  placements: ClassVar[tuple[str, ...]] = PLACEMENTS
  required_branches: ClassVar[tuple[str, ...] | None] = None
  looks_ahead: ClassVar[bool] = False

  @abc.abstractmethod
  def __call__(
    self, block: ResidualBlock, branches: Mapping[str, Branch], x: Float[Array, 'B T D'], context: Any
  ) -> Float[Array, 'B T D']:
    """The residual stream x after all branches, each of which is called exactly once.

    Args:
      branches: name → function, in the order of the block: 'mixer', 'cross', 'feed_forward'.
    """
