"""Tokens that were hidden, from both sides."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from tfm.data import special
from tfm.data.packing import protocol
from tfm.data.packing.sentence_pairs import SentencePairs
from tfm.mixers.protocol import Context
from tfm.models.encoder import at
from tfm.objectives.protocol import Objective, Prediction


MASK = '<mask>'
CHOICE, FATE, REPLACEMENT = 0, 1, 2  # what bits are for


@dataclasses.dataclass(frozen=True)
class MaskedLM(Prediction):
  """Σ over chosen tokens of -log p(token | the row with them hidden) (Devlin et al. 2019, §3.1, Task 1).

  Of the tokens of a row a share `rate` is chosen. A chosen token becomes `<mask>`, or some token of the
  vocabulary, or stays as it is. The choice depends on the seed and the row's place in training, so that a
  text is hidden in another way every time it comes (Liu et al. 2019, RoBERTa, §4.1: dynamic masking); in
  evaluation it is always the same. Ends of documents are not chosen.

  Attributes:
    rate: of the tokens that are chosen.
    masked, replaced: the shares of these that become `<mask>`, and some other token.
    whole_word: whether words are chosen with all their tokens (Devlin et al., released code of May 2019; Cui
      et al. 2021). A word begins at white space; one that would be more than is to be chosen is passed over.
    next_sentence: whether to tell, too, if the second text of a row follows the first (§3.1, Task 2): the
      mean over rows of -log p, added to the mean over tokens. It wants packing='sentence_pairs'.

  Raises:
    ValueError: for shares that are none.
  """

  architectures = ('encoder',)

  rate: float = 0.15
  masked: float = 0.8
  replaced: float = 0.1
  whole_word: bool = False
  next_sentence: bool = False

  def __post_init__(self):
    super().__post_init__()
    if not 0 < self.rate <= 1:
      raise ValueError(f'rate={self.rate} must lie above 0 and not above 1')
    if min(self.masked, self.replaced) < 0 or self.masked + self.replaced > 1:
      raise ValueError(f'masked={self.masked} and replaced={self.replaced} are no shares of one whole')

  @property
  def special_tokens(self):
    return (MASK,)

  @property
  def classifier_heads(self):
    return (('next_sentence', 2, ''),) if self.next_sentence else ()

  @property
  def masked_fraction(self):
    return self.rate

  @property
  def required_fields(self):
    return SentencePairs.extra_fields if self.next_sentence else frozenset()

  @property
  def suggested_packing(self):
    return 'sentence_pairs' if self.next_sentence else 'concat'

  def chosen(self, tokens: int) -> int:
    """How many of some tokens are chosen: at least one, where there is one."""
    return min(tokens, max(1, round(self.rate * tokens)))

  def padding(self, length):
    row = {field: np.zeros(length, np.int32) for field in ('inputs', 'positions', 'segments')}
    row |= {field: np.zeros(self.chosen(length), np.int32) for field in ('places', 'targets', 'counted')}
    return row | (dict(types=np.zeros(length, np.int32), next=np.int32(0)) if self.next_sentence else {})

  def rows(self, packing, tokens, length, seed, tokenizer):
    made = super().rows(packing, tokens, length, seed, tokenizer)
    return protocol.Mapped(made, functools.partial(self.hide, tokenizer, 0 if seed is None else seed))

  def hide(self, tokenizer, seed: int, row: protocol.Row, index: int) -> protocol.Row:
    """The row with tokens hidden; `places` says where the first of its `targets` stand that are `counted`."""
    inputs, length = row['inputs'], len(row['inputs'])
    free = np.flatnonzero((row['segments'] > 0) & (inputs != tokenizer.eos_id))
    units = self.words(tokenizer, row, free) if self.whole_word else [[i] for i in free.tolist()]
    left, places = self.chosen(len(free)), []
    for number in np.argsort(protocol.bits(seed, index, len(units), CHOICE), kind='stable').tolist():
      if len(units[number]) <= left:
        places += units[number]
        left -= len(units[number])
    places = np.array(sorted(places), np.int32)
    made = self.padding(length)
    here = slice(len(places))
    made['places'][here], made['targets'][here], made['counted'][here] = places, inputs[places], 1
    fate = protocol.bits(seed, index, len(places), FATE) / 2**64
    other = protocol.bits(seed, index, len(places), REPLACEMENT) % tokenizer.vocab_size
    given = np.where(
      fate < self.masked,
      special.number(tokenizer, MASK),
      np.where(fate < self.masked + self.replaced, other, inputs[places]),
    )
    made['inputs'][:] = inputs
    made['inputs'][places] = given
    return made | {field: row[field] for field in ('positions', 'segments', *self.required_fields)}

  def words(self, tokenizer, row: protocol.Row, free: np.ndarray) -> list[list[int]]:
    """The places of each word's tokens."""
    pieces = tokenizer.pieces
    before = {
      i: row['inputs'][i - 1] for i in free.tolist() if i and row['segments'][i - 1] == row['segments'][i]
    }

    def begins(i):
      if i not in before or before[i] == tokenizer.eos_id:
        return True
      return pieces[row['inputs'][i]][:1].isspace() or pieces[before[i]][-1:].isspace()

    number = np.cumsum([begins(i) for i in free.tolist()])
    return [
      [i for _, i in group]
      for _, group in itertools.groupby(zip(number, free.tolist()), key=lambda pair: pair[0])
    ]

  def summary(self, total, size):
    return Objective.summary(self, total, size)

  def __call__(self, model, params, batch, key):
    context = Context(batch['positions'], batch['segments'], train=key is not None, layout=self.layout)

    def read(model, tokens, types):
      x = model.features(tokens, context, types)
      return x, model.classify('next_sentence', x, context) if self.next_sentence else None

    (features, following), reports = self.applied(
      model, params, key, read, batch['inputs'], batch.get('types')
    )
    weights = batch['counted'].astype(jnp.float32)
    total, sums = self.predicted(
      model, params, at(features, batch['places']), batch['targets'], weights, reports
    )
    if not self.next_sentence:
      return total, sums
    there = (batch['segments'] > 0).any(1).astype(jnp.float32)
    rows = jnp.maximum(there.sum(), 1)
    costs = -jnp.take_along_axis(jax.nn.log_softmax(following), batch['next'][:, None], axis=1)[:, 0]
    loss = (costs * there).sum() / rows * sums['tokens']
    right = ((following.argmax(-1) == batch['next']) * there).sum() / rows * sums['tokens']
    return total + loss, sums | dict(next_sentence_loss=loss, next_sentence_accuracy=right)
