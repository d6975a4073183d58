"""The objective slot: batch → loss."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers import cross_entropy
from tfm.layers.cross_entropy import Sums
from tfm.shapes import Array, Float, Int, PyTree

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
    fields: what an example of its data has: a 'text', or a 'source' and a 'target'.
    gives: what it tells the masks of each document, such as 'prefix'.
    recurs: whether a row may be read in pieces.
  """

  fields: ClassVar[tuple[str, ...]] = ('text',)
  gives: ClassVar[frozenset[str]] = frozenset()
  recurs: ClassVar[bool] = False

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


@dataclasses.dataclass(frozen=True)
class Prediction(Objective):
  """Cross-entropy of tokens: what language models of every architecture have in common.

  Attributes:
    label_smoothing: ε, the mass spread evenly over the vocabulary (Szegedy et al. 2016, §7).
    z_loss: weight of log²Z, which keeps the normaliser near one (Chowdhery et al. 2022, §5).

  Raises:
    ValueError: for ε outside [0, 1) or a negative z_loss.
  """

  label_smoothing: float = 0.0
  z_loss: float = 0.0

  def __post_init__(self):
    if not 0 <= self.label_smoothing < 1:
      raise ValueError(f'label_smoothing={self.label_smoothing} must lie in [0, 1)')
    if self.z_loss < 0:
      raise ValueError(f'z_loss={self.z_loss} must be 0 or more')

  def applied(
      self, model: nn.Module, params: PyTree, key: Array | None, method: str | Callable, *args: Any
  ) -> tuple[Any, PyTree]:
    """What a method of the model gives, with dropout by `key`, and the collections that layers report in."""
    return model.apply({'params': params}, *args, method=method, rngs={} if key is None else {'dropout': key},
                       mutable=[] if key is None else REPORTS)

  def predicted(
      self, model: nn.Module, params: PyTree, features: Float[Array, 'B T D'], targets: Int[Array, 'B T'],
      weights: Float[Array, 'B T'], reports: PyTree,
  ) -> tuple[Float[Array, ''], Sums]:
    """The loss of `targets` under the logits that `features` give, those of `chunk` tokens at a time."""
    def summed(head, features, targets, weights):
      logits = model.apply({'params': head}, features, method='logits')
      return cross_entropy.sums(logits, targets, weights, self.label_smoothing, self.z_loss)

    pieces = cross_entropy.pieces(*targets.shape, self.chunk)
    head, rows = model.head(params), (features, targets, weights)
    if pieces == 1:
      made = summed(head, *rows)
    else:
      made = cross_entropy.in_pieces(summed, head, *(cross_entropy.cut(x, pieces) for x in rows))
    return with_reports(*made, reports)


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
