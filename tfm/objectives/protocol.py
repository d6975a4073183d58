"""The objective slot: batch → loss."""

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tfm.data.packing.protocol import Documents, Packing, Row, Rows
from tfm.data.packing.protocol import padding as empty
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.layers import cross_entropy
from tfm.layers.chunked_cross_entropy import LossSharding, chunk_count, chunked_loss
from tfm.layers.cross_entropy import WHOLE_VOCABULARY, Sums, VocabShard
from tfm.parallel.sharding import shard_count
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
    document_kinds: the fields that a document of its data may have: ('text',), ('source', 'target'), ….
    architectures: the models that it trains.
    special_tokens: tokens that it needs beyond the tokenizer's, by the names that stand for them in a text.
    classifier_heads: (name, classes, pooling or '' for config.model.pooling) of what classifies, besides
      the vocabulary.
    masked_fraction: the share of the tokens that an encoder is to predict.
    required_fields: what it reads of a row besides the fields that all have; the packing must give just that.
    supported_layouts: what the packing may promise of positions; packs: a packing that will do.
    mask_fields: what it tells the masks of each document, such as 'prefix'.
    supports_recurrence: whether a row may be read in pieces.
  """

  document_kinds: ClassVar[tuple[tuple[str, ...], ...]] = (('text',),)
  architectures: ClassVar[tuple[str, ...]] = ('decoder',)
  supported_layouts: ClassVar[tuple[str, ...]] = ('contiguous', 'packed')
  mask_fields: ClassVar[frozenset[str]] = frozenset()
  supports_recurrence: ClassVar[bool] = False

  chunk: int
  layout: str
  recurrence: int

  @property
  def special_tokens(self) -> tuple[str, ...]:
    return ()

  @property
  def classifier_heads(self) -> tuple[tuple[str, int, str], ...]:
    return ()

  @property
  def masked_fraction(self) -> float:
    return 0.0

  @property
  def required_fields(self) -> frozenset[str]:
    return frozenset()

  @property
  def suggested_packing(self) -> str:
    return 'concat'

  def rows(
    self, packing: Packing, tokens: Documents, length: int, seed: int | None, tokenizer: Tokenizer
  ) -> Rows:
    """The rows of training that a packing makes, in the form that the objective reads; for no seed those of
    evaluation, one pass that is always the same.

    Raises:
      ValueError: for what `Packing.rows` refuses.
    """
    return packing.evaluation_rows(tokens, length) if seed is None else packing.rows(tokens, length, seed)

  @abc.abstractmethod
  def padding(self, length: int) -> Row:
    """A row of no account, of the shape of all rows of `length` tokens."""

  def summary(self, total: Mapping[str, np.ndarray], size: int) -> dict[str, float]:
    """Metrics of a split, by name, from its sums and the bytes of the targets: all sums per token.

    `loss` in nats, `perplexity`, its exponential, `accuracy`, the share of tokens that were the likeliest,
    and `tokens`, how many counted.
    """
    tokens = max(total['tokens'], 1)
    means = {name: value / tokens for name, value in total.items() if name != 'tokens'}
    return means | dict(perplexity=math.exp(min(means['loss'], 700)), tokens=total['tokens'])

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

  def applied(
    self, model: nn.Module, params: PyTree, key: Array | None, method: str | Callable, *args: Any
  ) -> tuple[Any, PyTree]:
    """What a method of the model gives, with dropout by `key`, and the collections that layers report in."""
    return model.apply(
      {'params': params},
      *args,
      method=method,
      rngs={} if key is None else {'dropout': key},
      mutable=[] if key is None else REPORTS,
    )


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

  def padding(self, length):
    return empty(length)

  def summary(self, total, size):
    """Also `bits_per_byte`, the whole loss in bits over the bytes that were predicted (the end of a document
    costs bits and has no bytes), where those are known.
    """
    bits = total['loss'] / math.log(2)
    return super().summary(total, size) | (dict(bits_per_byte=bits / size) if size else {})

  def predicted(
    self,
    model: nn.Module,
    params: PyTree,
    features: Float[Array, 'B T D'],
    targets: Int[Array, 'B T'],
    weights: Float[Array, 'B T'],
    reports: PyTree,
  ) -> tuple[Float[Array, ''], Sums]:
    """The loss of `targets` under the logits that `features` give, those of `chunk` tokens at a time, and on
    a mesh of each device's own rows and part of the vocabulary.
    """
    head, rows = model.head(params), (features, targets, weights)
    sharding = LossSharding.of(*targets.shape, model.rows, head, model.head_axes(head, features))
    part, columns = model, WHOLE_VOCABULARY
    if sharding.is_sharded:
      width = model.rows // shard_count(sharding.vocab)
      # A model of as many tokens as there are columns here; which of them are none, `columns` tells.
      part, columns = model.clone(rows=width, vocab=width), VocabShard(sharding.vocab, model.vocab)

    def summed(head, features, targets, weights):
      return self.sums(part.apply({'params': head}, features, method='logits'), targets, weights, columns)

    if sharding.is_sharded or chunk_count(*targets.shape, self.chunk) > 1:
      made = chunked_loss(summed, sharding, self.chunk, head, *rows)
    else:
      made = summed(head, *rows)
    return with_reports(*made, reports)

  def sums(
    self,
    logits: Float[Array, 'B T V'],
    targets: Int[Array, 'B T'],
    weights: Float[Array, 'B T'],
    columns: VocabShard,
  ) -> tuple[Float[Array, ''], Sums]:
    """What is minimised, and the metrics, of some of the tokens of each row: what adds up over them. A metric
    is one number, or one of each row.
    """
    return cross_entropy.sum_cross_entropy(
      logits, targets, weights, self.label_smoothing, self.z_loss, columns
    )


def with_reports(
  total: Float[Array, ''], sums: Sums, reports: Mapping[str, PyTree]
) -> tuple[Float[Array, ''], Sums]:
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
