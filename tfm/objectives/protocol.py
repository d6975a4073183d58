"""The objective slot: batch → loss."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import flax.linen as nn

from tfm.shapes import Array, Float, PyTree


@dataclasses.dataclass(frozen=True)
class Objective(abc.ABC):
  """A loss as a sum over tokens, so that microbatches and devices of unequal weight add up.

  Attributes:
    chunk: tokens whose logits exist at once; 0 for all.
    layout: what the packing promises of positions, one of `tfm.masks.protocol.LAYOUTS`.
    gives: what it tells the masks of each document, such as 'prefix'.
  """

  gives: ClassVar[frozenset[str]] = frozenset()

  chunk: int
  layout: str

  @abc.abstractmethod
  def __call__(
      self, model: nn.Module, params: PyTree, batch: Mapping[str, Array], key: Array | None
  ) -> tuple[Float[Array, ''], dict[str, Float[Array, '']]]:
    """The loss summed over the batch, and sums for the metrics.

    Args:
      key: randomness of dropout; None evaluates, without dropout.

    Returns:
      The sum to minimise, and sums to divide by `tokens`, itself among them: `loss` (nats, without
      smoothing or penalties), `accuracy` (tokens predicted).
    """
