"""The objective slot: batch → loss."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.shapes import Array, Float, PyTree

Sums = dict[str, Float[Array, '']]
# What layers say of themselves in training, by `sow`: means over their tokens.
REPORTS = ('losses', 'metrics')


@dataclasses.dataclass(frozen=True)
class Objective(abc.ABC):
  """A loss as a sum over tokens, so that microbatches and devices of unequal weight add up.

  Attributes:
    chunk: tokens whose logits exist at once; 0 for all.
    layout: what the packing promises of positions, one of `tfm.masks.protocol.LAYOUTS`.
    recurrence: tokens of the pieces in which training reads a row, each remembering those before it
      without a gradient; 0: the row at once.
    gives: what it tells the masks of each document, such as 'prefix'.
  """

  gives: ClassVar[frozenset[str]] = frozenset()

  chunk: int
  layout: str
  recurrence: int

  @abc.abstractmethod
  def __call__(
      self, model: nn.Module, params: PyTree, batch: Mapping[str, Array], key: Array | None
  ) -> tuple[Float[Array, ''], Sums]:
    """The loss summed over the batch, and sums for the metrics.

    Args:
      key: randomness of dropout; None evaluates, without dropout.

    Returns:
      The sum to minimise, and sums to divide by `tokens`, itself among them: `loss` (nats, without
      smoothing or penalties), `accuracy` (tokens predicted). In training also what layers report:
      their losses, which are minimised too, as `auxiliary`, and their metrics, as means over the layers.
    """


def with_reports(
    total: Float[Array, ''], sums: Sums, reports: Mapping[str, PyTree]) -> tuple[Float[Array, ''], Sums]:
  """An objective and its sums with the collections `REPORTS` in them, each number times `tokens`.

  Losses of microbatches are so averaged by their tokens; one that is no mean over tokens, such as that
  of balance, is not quite that of the whole batch.
  """
  said = {}
  for path, values in jax.tree.leaves_with_path(reports.get('metrics', {})):
    said.setdefault(path[-2].key, []).append(values.reshape(-1))  # a name holds a tuple of what was sown
  said = {name: jnp.concatenate(values).mean() for name, values in said.items()}
  if 'losses' in reports:
    said['auxiliary'] = sum(values.sum() for values in jax.tree.leaves(reports['losses']))
  said = {name: value * sums['tokens'] for name, value in said.items()}
  return total + said.get('auxiliary', 0), sums | said
