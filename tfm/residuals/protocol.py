"""The residual slot: how the branches of a block are added to the residual stream."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

from tfm.shapes import Array, Float


# Where a norm stands: before a branch, after the addition, before and after the branch, or after the branch.
PLACEMENTS = ('pre', 'post', 'sandwich', 'res_post')
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


class Depth(NamedTuple):
  """How many layers encoder and decoder of a model have, 0 without one, and in which of them a block is."""

  encoder: int
  decoder: int
  in_encoder: bool


@dataclasses.dataclass(frozen=True)
class Residual(abc.ABC):
  """A frozen, hashable rule that adds branches to a residual stream.

  Attributes:
    depth: of the model, which sets it.
    examples: specs that the conformance suite tries; a file whose bare name is a spec needs none.
    placements: the norm placements that it defines.
    required_branches: the names of exactly the branches it is defined for; None: any.
    streams: how many residual streams there are: the stream is [B T D] if one, else [B T N D].
    looks_ahead: whether its output depends on later tokens, which a decoder's must not.
    has_unit_length: whether every token of the stream has length 1.
    reads_condition: whether it needs `Context.condition`, which diffusion models have; their blocks must.
  """

  examples: ClassVar[tuple[str, ...]] = ()
  placements: ClassVar[tuple[str, ...]] = PLACEMENTS
  required_branches: ClassVar[tuple[str, ...] | None] = None
  streams: ClassVar[int] = 1
  looks_ahead: ClassVar[bool] = False
  has_unit_length: ClassVar[bool] = False
  reads_condition: ClassVar[bool] = False

  depth: Depth = dataclasses.field(default=Depth(0, 1, False), kw_only=True)

  def initial_scales(self, branches: int) -> tuple[float, float]:
    """Factors on the initial projections into the residual stream, and on those to values and hidden layers;
    only used if initial values are to depend on the depth.

    Args:
      branches: how many are added to the stream in the whole stack.
    """
    return branches**-0.5, 1.0

  @abc.abstractmethod
  def __call__(
    self, block: ResidualBlock, branches: Mapping[str, Branch], x: Float[Array, 'B T D'], context: Any
  ) -> Float[Array, 'B T D']:
    """The residual stream x after all branches, each of which is called exactly once.

    Args:
      branches: name → function, in the order of the block: 'mixer', 'cross', 'feed_forward'.
    """
