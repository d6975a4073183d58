"""Prediction of masked tokens."""

import dataclasses
import functools
import itertools
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval

from tfm.data.packing import protocol
from tfm.data.packing.sentence_pairs import SentencePairs
from tfm.data.special_tokens import special_token_id
from tfm.mixers.protocol import Context
from tfm.models.encoder import at
from tfm.objectives.protocol import Objective, Predicted, Prediction
from tfm.spec import Fraction


MASK = '<mask>'
SELECTION, ACTION, REPLACEMENT = 0, 1, 2  # the purposes of random bits


@dataclasses.dataclass(frozen=True)
class MaskedLM(Prediction):
  """Σ over selected tokens of -log p(token | the row with these masked) (Devlin et al. 2019, §3.1, Task 1).

  A fraction `rate` of the tokens of a row is selected. A selected token is replaced by `<mask>`, or by a
  random token of the vocabulary, or remains. The selection depends on the seed and the row's place in
  training, so a text is masked differently in every epoch (Liu et al. 2019, RoBERTa, §4.1: dynamic masking);
  in evaluation it is always the same. Ends of documents are not selected.

  Attributes:
    rate: the fraction of the tokens that are selected.
    masked, replaced: the fractions of these that become `<mask>`, and a random token.
    whole_word: whether words are selected with all their tokens (Devlin et al., released code of May 2019;
      Cui et al. 2021). A word begins at white space; a word with more tokens than remain to be selected is
      skipped.
    next_sentence: whether to predict, too, if the second text of a row follows the first (§3.1, Task 2):
      the mean over rows of -log p is added to the mean over tokens. It requires packing='sentence_pairs'.

  Raises:
    ValueError: for fractions outside of their ranges.
  """

  architectures = ('encoder',)

  rate: Annotated[float, Interval(gt=0, le=1)] = 0.15
  masked: Fraction = 0.8
  replaced: Fraction = 0.1
  whole_word: bool = False
  next_sentence: bool = False

  def __post_init__(self):
    super().__post_init__()
    if not 0 < self.rate <= 1:
      raise ValueError(f'rate={self.rate} must lie in (0, 1]')
    if min(self.masked, self.replaced) < 0 or self.masked + self.replaced > 1:
      raise ValueError(
        f'masked={self.masked} and replaced={self.replaced} must not be negative or add up to more than 1'
      )

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

  def selected_count(self, tokens: int) -> int:
    """Returns how many of a number of tokens are selected: at least one of one or more."""
    return min(tokens, max(1, round(self.rate * tokens)))

  def padding_row(self, length):
    row = {field: np.zeros(length, np.int32) for field in ('inputs', 'positions', 'segments')}
    row |= {
      field: np.zeros(self.selected_count(length), np.int32) for field in ('places', 'targets', 'counted')
    }
    return row | (dict(types=np.zeros(length, np.int32), next=np.int32(0)) if self.next_sentence else {})

  def rows(self, packing, tokens, length, seed, tokenizer):
    rows = super().rows(packing, tokens, length, seed, tokenizer)
    return protocol.MappedRows(
      rows, functools.partial(self.mask_tokens, tokenizer, 0 if seed is None else seed)
    )

  def mask_tokens(self, tokenizer, seed: int, row: protocol.Row, index: int) -> protocol.Row:
    """Returns the row with masked tokens; `places` are the places of the first `targets`, those with
    `counted` = 1.
    """
    inputs, length = row['inputs'], len(row['inputs'])
    eligible = np.flatnonzero((row['segments'] > 0) & (inputs != tokenizer.eos_id))
    units = self.words(tokenizer, row, eligible) if self.whole_word else [[i] for i in eligible.tolist()]
    remaining, places = self.selected_count(len(eligible)), []
    for number in protocol.permutation(seed, index, len(units), SELECTION).tolist():
      if len(units[number]) <= remaining:
        places += units[number]
        remaining -= len(units[number])
    places = np.array(sorted(places), np.int32)
    masked_row = self.padding_row(length)
    span = slice(len(places))
    masked_row['places'][span], masked_row['targets'][span] = places, inputs[places]
    masked_row['counted'][span] = 1
    action = protocol.random_bits(seed, index, len(places), ACTION) / 2**64
    replacements = protocol.random_bits(seed, index, len(places), REPLACEMENT) % tokenizer.vocab_size
    masked_row['inputs'][:] = inputs
    masked_row['inputs'][places] = np.where(
      action < self.masked,
      special_token_id(tokenizer, MASK),
      np.where(action < self.masked + self.replaced, replacements, inputs[places]),
    )
    return masked_row | {field: row[field] for field in ('positions', 'segments', *self.required_fields)}

  def words(self, tokenizer, row: protocol.Row, eligible: np.ndarray) -> list[list[int]]:
    """Returns the places of each word's tokens."""
    pieces = tokenizer.pieces
    previous = {
      i: row['inputs'][i - 1] for i in eligible.tolist() if i and row['segments'][i - 1] == row['segments'][i]
    }

    def begins_word(i):
      if i not in previous or previous[i] == tokenizer.eos_id:
        return True
      return pieces[row['inputs'][i]][:1].isspace() or pieces[previous[i]][-1:].isspace()

    number = np.cumsum([begins_word(i) for i in eligible.tolist()])
    return [
      [i for _, i in group]
      for _, group in itertools.groupby(zip(number, eligible.tolist()), key=lambda pair: pair[0])
    ]

  def summarize(self, total, size):
    return Objective.summarize(self, total, size)

  def predict(self, model, params, batch, key, dropout, sow=()):
    context = Context(batch['positions'], batch['segments'], train=dropout is not None, layout=self.layout)

    def compute_features(model, tokens, types):
      x = model.features(tokens, context, types)
      return x, model.classify('next_sentence', x, context) if self.next_sentence else None

    (features, logits), reports = self.apply_model(
      model, params, dropout, compute_features, batch['inputs'], batch.get('types'), sow=sow
    )
    weights = batch['counted'].astype(jnp.float32)
    return Predicted(at(features, batch['places']), batch['targets'], weights, reports, logits)

  def finish(self, predicted, total, sums, batch, key):
    if not self.next_sentence:
      return total, sums
    logits = predicted.row_logits
    valid = (batch['segments'] > 0).any(1).astype(jnp.float32)
    rows = jnp.maximum(valid.sum(), 1)
    row_loss = -jnp.take_along_axis(jax.nn.log_softmax(logits), batch['next'][:, None], axis=1)[:, 0]
    loss = (row_loss * valid).sum() / rows * sums['tokens']
    accuracy = ((logits.argmax(-1) == batch['next']) * valid).sum() / rows * sums['tokens']
    return total + loss, sums | dict(next_sentence_loss=loss, next_sentence_accuracy=accuracy)
