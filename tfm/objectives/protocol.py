"""The objective slot: batch → loss."""

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from tfm.data.packing.protocol import Documents, Packing, Row, Rows, padding_row
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.errors import require
from tfm.layers import cross_entropy
from tfm.layers.chunked_cross_entropy import LossSharding, chunk_count, chunked_loss
from tfm.layers.cross_entropy import WHOLE_VOCABULARY, Sums, VocabShard
from tfm.parallel.sharding import shard_count
from tfm.shapes import Array, Float, Int, PyTree
from tfm.spec import NonNegativeFloat, Rate


# The collections of what layers report in training with `sow`: means over their tokens.
REPORTS = ('losses', 'metrics')


@struct.dataclass
class Reference:
  """A frozen model, with which an objective compares the one that is trained."""

  model: nn.Module = struct.field(pytree_node=False)
  params: PyTree


@dataclasses.dataclass(frozen=True)
class Objective(abc.ABC):
  """A loss as a sum over tokens, so that microbatches and devices of unequal weight add up.

  Attributes:
    chunk: the number of tokens whose logits are computed at once; 0 for all.
    layout: what the packing guarantees for positions, one of `tfm.masks.protocol.LAYOUTS`.
    recurrence: the length of the segments in which training reads a row, each with the cached states of the
      previous ones, without their gradient; 0: the whole row.
    document_kinds: the fields that its documents may have: ('text',), ('source', 'target'), ….
    architectures: the models that it trains.
    supported_layouts: the layouts that its packing may have.
    mask_fields: what it provides to the masks for each document, such as 'prefix'.
    supports_recurrence: whether a row may be read in segments.
    supports_accumulation: whether its loss is a sum over rows that do not depend on each other, so that a
      batch may be divided into microbatches.
    evaluates_with_reference: whether an evaluation reads the reference, too.
  """

  document_kinds: ClassVar[tuple[tuple[str, ...], ...]] = (('text',),)
  architectures: ClassVar[tuple[str, ...]] = ('decoder',)
  supported_layouts: ClassVar[tuple[str, ...]] = ('contiguous', 'packed')
  mask_fields: ClassVar[frozenset[str]] = frozenset()
  supports_recurrence: ClassVar[bool] = False
  supports_accumulation: ClassVar[bool] = True
  evaluates_with_reference: ClassVar[bool] = False

  chunk: int
  layout: str
  recurrence: int

  @property
  def special_tokens(self) -> tuple[str, ...]:
    """The names, as in texts, of the special tokens that it needs in addition to the tokenizer's."""
    return ()

  @property
  def classifier_heads(self) -> tuple[tuple[str, int, str], ...]:
    """(name, classes, pooling or '' for config.model.pooling) of its classifiers, in addition to the
    vocabulary.
    """
    return ()

  @property
  def masked_fraction(self) -> float:
    """The fraction of the tokens that an encoder predicts."""
    return 0.0

  @property
  def condition_classes(self) -> int:
    """The number of classes that a diffusion model is conditioned on."""
    return 0

  @property
  def outputs(self) -> int:
    """How many numbers a diffusion model predicts per channel of a pixel."""
    return 1

  @property
  def further_tokens(self) -> int:
    """How many tokens beyond the next one a decoder predicts in training."""
    return 0

  @property
  def reconstructs(self) -> bool:
    """Whether a decoder has a module that reads the whole text from the hidden state of its last token."""
    return False

  @property
  def taught_width(self) -> int:
    """The width to which hidden states are projected to be compared with those of another model; 0: none."""
    return 0

  @property
  def required_fields(self) -> frozenset[str]:
    """The row fields that it reads in addition to those that all rows have; the packing must have exactly
    these.
    """
    return frozenset()

  @property
  def reference_workdir(self) -> str:
    """The directory of the run whose model is its reference; '': it has none.

    An objective with one takes it as its argument `reference`.
    """
    return ''

  def require_reference(self, reference: Reference | None) -> None:
    """Raises ValueError if the reference is missing."""
    require(
      reference is not None,
      f'config.objective compares with the model of {self.reference_workdir!r}, which only tfm train, '
      'tfm evaluate and the runs of a study load; use an objective without another model here',
    )

  def validate_reference(self, model: nn.Module, reference: nn.Module, length: int) -> None:
    """Raises ValueError, before anything is compiled, if the model of the reference cannot be compared with
    the one that is trained, on rows of `length` tokens.
    """

  @property
  def suggested_packing(self) -> str:
    """A packing that fits it, for messages."""
    return 'concat'

  def rows(
    self, packing: Packing, tokens: Documents, length: int, seed: int | None, tokenizer: Tokenizer
  ) -> Rows:
    """Returns the rows of a packing in the form that the objective reads: those of training, or, if the seed
    is None, those of one evaluation pass, which is always the same.

    Raises:
      ValueError: as `Packing.rows`.
    """
    return packing.evaluation_rows(tokens, length) if seed is None else packing.rows(tokens, length, seed)

  @abc.abstractmethod
  def padding_row(self, length: int) -> Row:
    """Returns a row that does not count, in the shape of all rows of `length` tokens."""

  def summarize(self, total: Mapping[str, np.ndarray], size: int) -> dict[str, float]:
    """Returns the metrics of a split, by name, from its sums and the bytes of the targets: all sums per
    token.

    `loss` in nats; `perplexity`, its exponential; `accuracy`, the fraction of tokens that had the highest
    probability; and `tokens`, the number that counted.
    """
    tokens = max(total['tokens'], 1)
    means = {name: value / tokens for name, value in total.items() if name != 'tokens'}
    return means | dict(perplexity=math.exp(min(means['loss'], 700)), tokens=total['tokens'])

  @abc.abstractmethod
  def __call__(
    self, model: nn.Module, params: PyTree, batch: Mapping[str, Array], key: Array | None
  ) -> tuple[Float[Array, ''], Sums]:
    """Returns the loss summed over the batch, and sums for the metrics.

    Args:
      key: the randomness of dropout; None evaluates, without dropout.

    Returns:
      The sum to minimize, and sums to divide by `tokens`, itself among them: `loss` (nats, without smoothing
      or penalties), `accuracy` (correct tokens). In training also what layers report: their losses, which are
      minimized, too, as `auxiliary`, and their metrics, as means over the layers.
    """

  def apply_model(
    self,
    model: nn.Module,
    params: PyTree,
    key: Array | None,
    method: str | Callable,
    *args: Any,
    sow: Sequence[str] = (),
  ) -> tuple[Any, PyTree]:
    """Returns the result of a method of the model, with dropout by `key`, and the collections of layer
    reports and of `sow`.
    """
    return model.apply(
      {'params': params},
      *args,
      method=method,
      rngs={} if key is None else {'dropout': key},
      mutable=[*(() if key is None else REPORTS), *sow],
    )


class Predicted(NamedTuple):
  """What the loss of predicted tokens is computed from.

  Attributes:
    features: the last hidden states; targets, weights: of each.
    reports: the collections of layer reports.
    row_logits: of a head that classifies rows, or None.
  """

  features: Float[Array, 'B T D']
  targets: Int[Array, 'B T']
  weights: Float[Array, 'B T']
  reports: PyTree
  row_logits: Float[Array, 'B N'] | None = None


@dataclasses.dataclass(frozen=True)
class Prediction(Objective):
  """Cross-entropy of tokens, for language models of every architecture.

  Attributes:
    label_smoothing: ε, the probability that is distributed uniformly over the vocabulary (Szegedy et al.
      2016, §7).
    z_loss: the weight of log²Z, which keeps the normalizer near one (Chowdhery et al. 2022, §5).

  Raises:
    ValueError: for ε outside [0, 1) or a negative z_loss.
  """

  label_smoothing: Rate = 0.0
  z_loss: NonNegativeFloat = 0.0

  def __post_init__(self):
    if not 0 <= self.label_smoothing < 1:
      raise ValueError(f'label_smoothing={self.label_smoothing} must lie in [0, 1)')
    if self.z_loss < 0:
      raise ValueError(f'z_loss={self.z_loss} must be 0 or more')

  def padding_row(self, length):
    return padding_row(length)

  def summarize(self, total, size):
    """Also `bits_per_byte`, the total loss in bits divided by the number of predicted bytes, if that is known
    (the end of a document costs bits and has no bytes).
    """
    bits = total['loss'] / math.log(2)
    return super().summarize(total, size) | (dict(bits_per_byte=bits / size) if size else {})

  def __call__(self, model, params, batch, key):
    predicted = self.predict(model, params, batch, key, key)
    features, targets, weights, reports, _ = predicted
    total, sums = self.compute_loss(model, params, features, targets, weights, reports)
    return self.finish(predicted, total, sums, batch, key)

  @abc.abstractmethod
  def predict(
    self,
    model: nn.Module,
    params: PyTree,
    batch: Mapping[str, Array],
    key: Array | None,
    dropout: Array | None,
    sow: Sequence[str] = (),
  ) -> Predicted:
    """Applies a model to the batch.

    Args:
      key: the randomness of the batch in training; None in evaluation.
      dropout: the randomness of dropout; None: no dropout.
      sow: collections of layers that the reports have, too, such as hidden states.
    """

  def compute_loss(
    self,
    model: nn.Module,
    params: PyTree,
    features: Float[Array, 'B T D'],
    targets: Int[Array, 'B T'],
    weights: Float[Array, 'B T'],
    reports: PyTree,
  ) -> tuple[Float[Array, ''], Sums]:
    """Returns the loss of `targets` under the logits of `features`, and sums for the metrics."""
    models = [(model, params, features)]
    return add_reports(*sum_token_losses(self.sum_tokens, models, targets, weights, self.chunk), reports)

  def finish(
    self,
    predicted: Predicted,
    total: Float[Array, ''],
    sums: Sums,
    batch: Mapping[str, Array],
    key: Array | None,
  ) -> tuple[Float[Array, ''], Sums]:
    """Returns the loss and the sums with what is computed from whole rows."""
    del predicted, batch, key
    return total, sums

  def sum_tokens(
    self,
    logits: Float[Array, 'B T V'],
    targets: Int[Array, 'B T'],
    weights: Float[Array, 'B T'],
    shard: VocabShard,
  ) -> tuple[Float[Array, ''], Sums]:
    """Returns the loss and the metrics of some of the tokens of each row, as sums over these. A metric is one
    number, or one per row. Columns that `shard` does not count as tokens have logits of -∞.
    """
    return cross_entropy.sum_cross_entropy(logits, targets, weights, self.label_smoothing, self.z_loss, shard)


def sum_token_losses(
  loss_fn: Callable[..., tuple[Float[Array, ''], Sums]],
  models: Sequence[tuple[nn.Module, PyTree, Float[Array, 'B T D']]],
  targets: Int[Array, 'B T'],
  weights: Float[Array, 'B T'],
  chunk: int,
) -> tuple[Float[Array, ''], Sums]:
  """Returns the sums over all tokens of a loss, and of its metrics.

  The logits are computed for `chunk` tokens at a time, and on a mesh by each device for its own rows and
  shard of the vocabulary.

  Args:
    loss_fn: (logits of each model, targets, weights, shard of the vocabulary) → loss and sums of some of the
      tokens.
    models: (model, parameters, features), all of one vocabulary; only the first has a gradient.
  """
  heads = [model.head(params) for model, params, _ in models]
  axes = [model.head_axes(head, x) for (model, _, x), head in zip(models, heads)]
  rows = (*(x for _, _, x in models), targets, weights)
  first = models[0][0]
  sharding = LossSharding.of(*targets.shape, first.rows, heads, None if None in axes else axes)
  shard_models, shard = [model for model, _, _ in models], WHOLE_VOCABULARY
  is_padded = first.vocab < first.rows and all(model.rows == first.rows for model in shard_models)
  if sharding.is_sharded or is_padded:  # to mask columns takes less than to leave them out
    width = first.rows // shard_count(sharding.vocab)
    # Models with as many tokens as this device has columns; those of padding are masked below.
    shard_models = [model.clone(rows=width, vocab=width) for model in shard_models]
    shard = VocabShard(sharding.vocab, first.vocab)

  def sum_chunk(heads, *rows):
    *features, targets, weights = rows
    heads = [heads[0], *jax.lax.stop_gradient(heads[1:])]
    logits = [
      cross_entropy.mask_padding(shard, model.apply({'params': head}, x, method='logits'))
      for model, head, x in zip(shard_models, heads, features)
    ]
    return loss_fn(*logits, targets, weights, shard)

  if sharding.is_sharded or chunk_count(*targets.shape, chunk) > 1:
    return chunked_loss(sum_chunk, sharding, chunk, heads, *rows)
  return sum_chunk(heads, *rows)


def add_reports(
  total: Float[Array, ''], sums: Sums, reports: Mapping[str, PyTree]
) -> tuple[Float[Array, ''], Sums]:
  """Adds the collections `REPORTS` of layers to an objective's loss and sums, each number times `tokens`.

  So the losses of microbatches are averaged with their numbers of tokens as weights. A loss that is not a
  mean over tokens, such as a load-balancing loss, is then only approximately that of the whole batch.
  """
  values_of = {}
  for path, values in jax.tree.leaves_with_path(reports.get('metrics', {})):
    values_of.setdefault(path[-2].key, []).append(values.reshape(-1))  # a name has a tuple of the sown values
  means = {name: jnp.concatenate(values).mean() for name, values in values_of.items()}
  if 'losses' in reports:
    means['auxiliary'] = sum(values.sum() for values in jax.tree.leaves(reports['losses']))
  weighted = {name: value * sums['tokens'] for name, value in means.items()}
  return total + weighted.get('auxiliary', 0), sums | weighted
