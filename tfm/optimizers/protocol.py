"""The optimizer slot: Optax transformations. Clipping, frozen parameters and layer decay are added in
training/.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import ClassVar

import optax

from tfm.shapes import PyTree


# parameters → a tree of booleans: which of them decay.
DecayMask = Callable[[PyTree], PyTree]


@dataclasses.dataclass(frozen=True)
class Optimizer(abc.ABC):
  """A frozen set of hyperparameters that makes an Optax transformation.

  Attributes:
    examples: specs that the conformance suite tries; a file whose bare name is a spec needs none.
    normalizes_updates: whether the size of an update does not depend on that of the gradient, which decides
      the learning rates under muP; None: unknown, so that muP is refused.
  """

  examples: ClassVar[tuple[str, ...]] = ()
  normalizes_updates: ClassVar[bool | None] = None

  @abc.abstractmethod
  def transformation(self, rate: optax.Schedule, decay_mask: DecayMask) -> optax.GradientTransformation:
    """The transformation from gradients to updates.

    Args:
      rate: the learning rate by steps done.
      decay_mask: which parameters weight decay applies to, if the optimizer has weight decay.
    """

  def decay(self, rate: float) -> float:
    """The share of a parameter that weight decay takes away in one step at a learning rate."""
    return 0.0
