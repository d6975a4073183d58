"""Prediction of the spans that were removed from a text."""

import dataclasses
import functools
from typing import Annotated

import numpy as np
from annotated_types import Interval

from tfm.data.packing import protocol
from tfm.objectives.protocol import Objective
from tfm.objectives.seq2seq import Seq2Seq


NOISE, REMAINDER = 0, 1  # the purposes of random bits


@dataclasses.dataclass(frozen=True)
class SpanCorruption(Seq2Seq):
  """Σ over the tokens of a target that contains the spans removed from its source (Raffel et al. 2020,
  §3.1.4, §3.3.4).

    text    Thank you for inviting me to your party last week
    source  Thank you <extra_id_0> me to your party <extra_id_1> week
    target  <extra_id_0> for inviting <extra_id_1> last

  Of n tokens round(rate · n) are removed, in round(that / span) spans. The removed and the remaining tokens
  are each divided into this number of parts, uniformly at random, and a remaining part comes first. A
  sentinel replaces each span. The text of a row is the longest that fits: its source has at most data.length
  tokens with the end of the text, which determines the length of its target.

  Attributes:
    rate: the fraction of the tokens that are removed.
    span: the mean number of tokens of a span.
    sentinels: the number of tokens `<extra_id_0>`, … for the spans of a row.

  Raises:
    ValueError: for a rate outside (0, 1), a span below 1, or (from `rows`) too few sentinels.
  """

  document_kinds = (('text',),)
  supported_layouts = ('contiguous',)

  rate: Annotated[float, Interval(gt=0, lt=1)] = 0.15
  span: Annotated[float, Interval(ge=1, le=1000)] = 3.0
  sentinels: Annotated[int, Interval(ge=1, le=100_000)] = 100

  def __post_init__(self):
    super().__post_init__()
    if not 0 < self.rate < 1:
      raise ValueError(f'rate={self.rate} must lie between 0 and 1')
    if self.span < 1:
      raise ValueError(f'span={self.span} must be 1 or more')
    if self.sentinels < 1:
      raise ValueError(f'sentinels={self.sentinels} must be 1 or more')

  @property
  def suggested_packing(self):
    return 'concat'

  @property
  def special_tokens(self):
    return tuple(f'<extra_id_{i}>' for i in range(self.sentinels))

  def counts(self, tokens: int) -> tuple[int, int]:
    """Returns how many of a number of tokens are removed, and in how many spans; of two or more tokens, at
    least one is removed and one remains.
    """
    noise = min(max(round(self.rate * tokens), 1), tokens - 1)
    return noise, min(max(round(noise / self.span), 1), tokens - noise)

  def lengths(self, tokens: int) -> tuple[int, int]:
    """Returns the number of tokens of source and target, each with its end."""
    noise, spans = self.counts(tokens)
    return tokens - noise + spans + 1, noise + spans + 1

  def text_length(self, length: int) -> int:
    """Returns the length of the longest text whose source, and whose target, has at most `length` tokens.

    Raises:
      ValueError: for a length without room for a span, or for more spans than sentinels.
    """
    if length < 3:
      raise ValueError(f'data.length={length} has no room for a span; use at least 3')
    tokens = 2
    while max(self.lengths(tokens + 1)) <= length:
      tokens += 1
    spans = self.counts(tokens)[1]
    if spans > self.sentinels:
      raise ValueError(
        f'sentinels={self.sentinels} are too few for the {spans} spans of a source of data.length={length} '
        f'tokens; use at least {spans}'
      )
    return tokens

  def padding_row(self, length):
    _, targets = self.lengths(self.text_length(length))
    row = {field: np.zeros(targets, np.int32) for field in protocol.FIELDS}
    return row | {field: np.zeros(length, np.int32) for field in protocol.PAIR_FIELDS if field not in row}

  def rows(self, packing, tokens, length, seed, tokenizer):
    rows = super().rows(packing, tokens, self.text_length(length), seed, tokenizer)
    return protocol.MappedRows(
      rows, functools.partial(self.corrupt, tokenizer, length, 0 if seed is None else seed)
    )

  def corrupt(self, tokenizer, length: int, seed: int, row: protocol.Row, index: int) -> protocol.Row:
    """Returns the source and target of a row of text."""
    text, pair = row['inputs'][row['segments'] > 0], self.padding_row(length)
    if len(text) < 2:  # too short to remove a span
      return pair
    noise, spans = self.counts(len(text))
    removed, remaining = (
      random_partition(n, spans, protocol.random_bits(seed, index, n, purpose))
      for n, purpose in ((noise, NOISE), (len(text) - noise, REMAINDER))
    )
    source, target, start = [], [], 0
    for i, (remaining_size, removed_size) in enumerate(zip(remaining, removed)):
      sentinel = [tokenizer.vocab_size + i]
      middle, end = start + remaining_size, start + remaining_size + removed_size
      source += [text[start:middle], sentinel]
      target += [sentinel, text[middle:end]]
      start = end
    source, target = (np.concatenate([*side, [tokenizer.eos_id]]) for side in (source, target))
    span, source_span = slice(len(target)), slice(len(source))
    pair['targets'][span], pair['inputs'][span] = target, np.append(tokenizer.bos_id, target[:-1])
    pair['positions'][span], pair['segments'][span] = np.arange(len(target)), 1
    pair['source'][source_span], pair['source_segments'][source_span] = source, 1
    pair['source_positions'][source_span] = np.arange(len(source))
    return pair

  def summarize(self, total, size):
    return Objective.summarize(self, total, size)


def random_partition(total: int, count: int, bits: np.ndarray) -> np.ndarray:
  """Divides `total` into `count` parts of at least 1, uniformly at random: at the places of the smallest
  bits.
  """
  ends = np.sort(np.argsort(bits[: total - 1], kind='stable')[: count - 1]) + 1
  return np.diff(np.concatenate([[0], ends, [total]]))
