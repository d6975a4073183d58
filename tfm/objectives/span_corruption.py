"""Spans that were cut out of a text, from what is left of it."""

import dataclasses
import functools

import numpy as np

from tfm.data.packing import protocol
from tfm.objectives.protocol import Objective
from tfm.objectives.seq2seq import Seq2Seq


NOISE, KEPT = 0, 1  # what bits are for


@dataclasses.dataclass(frozen=True)
class SpanCorruption(Seq2Seq):
  """Σ over the tokens of a target that tells what was cut out of its source (Raffel et al. 2020, §3.1.4 and
  §3.3.4).

    text    Thank you for inviting me to your party last week
    source  Thank you <extra_id_0> me to your party <extra_id_1> week
    target  <extra_id_0> for inviting <extra_id_1> last

  Of n tokens round(rate · n) are cut out, in round(that / span) spans; both what is cut out and what stays
  falls into as many parts by chance, all ways alike likely, and what stays comes first. A sentinel stands for
  each span. The text of a row is as long as fits: its source has at most data.length tokens with the end of
  the text, and its target so many as follow from that.

  Attributes:
    rate: of the tokens that are cut out.
    span: how many of these are together on average.
    sentinels: tokens `<extra_id_0>`, … for the spans of a row.

  Raises:
    ValueError: for a rate outside (0, 1), a span below 1, or (from `rows`) too few sentinels.
  """

  document_kinds = (('text',),)
  supported_layouts = ('contiguous',)

  rate: float = 0.15
  span: float = 3.0
  sentinels: int = 100

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
    """How many of some tokens are cut out, and in how many spans; at least one is, and one stays, where there
    are two.
    """
    noise = min(max(round(self.rate * tokens), 1), tokens - 1)
    return noise, min(max(round(noise / self.span), 1), noise, tokens - noise)

  def lengths(self, tokens: int) -> tuple[int, int]:
    """Tokens of source and target, each with its end."""
    noise, spans = self.counts(tokens)
    return tokens - noise + spans + 1, noise + spans + 1

  def whole(self, length: int) -> int:
    """Tokens of the longest text whose source, and whose target, has at most `length`.

    Raises:
      ValueError: for a length that has no room, or more spans than there are sentinels.
    """
    if length < 3:
      raise ValueError(f'data.length={length} has no room for a span; give at least 3')
    tokens = 2
    while max(self.lengths(tokens + 1)) <= length:
      tokens += 1
    spans = self.counts(tokens)[1]
    if spans > self.sentinels:
      raise ValueError(
        f'sentinels={self.sentinels} do not tell {spans} spans apart, which a source of '
        f'data.length={length} tokens has; give as many'
      )
    return tokens

  def padding(self, length):
    _, targets = self.lengths(self.whole(length))
    row = {field: np.zeros(targets, np.int32) for field in protocol.FIELDS}
    return row | {field: np.zeros(length, np.int32) for field in protocol.PAIR_FIELDS if field not in row}

  def rows(self, packing, tokens, length, seed, tokenizer):
    made = super().rows(packing, tokens, self.whole(length), seed, tokenizer)
    return protocol.Mapped(
      made, functools.partial(self.corrupt, tokenizer, length, 0 if seed is None else seed)
    )

  def corrupt(self, tokenizer, length: int, seed: int, row: protocol.Row, index: int) -> protocol.Row:
    """The pair that a row of text becomes."""
    text, made = row['inputs'][row['segments'] > 0], self.padding(length)
    if len(text) < 2:  # nothing that could be cut in two
      return made
    noise, spans = self.counts(len(text))
    cut, kept = (
      parts(n, spans, protocol.bits(seed, index, max(n - 1, 1), purpose))
      for n, purpose in ((noise, NOISE), (len(text) - noise, KEPT))
    )
    source, target, at = [], [], 0
    for i, (stays, goes) in enumerate(zip(kept, cut)):
      sentinel = [tokenizer.vocab_size + i]
      source += [text[at : at + stays], sentinel]
      target += [sentinel, text[at + stays : at + stays + goes]]
      at += stays + goes
    source, target = (np.concatenate([*side, [tokenizer.eos_id]]) for side in (source, target))
    here, there = slice(len(target)), slice(len(source))
    made['targets'][here], made['inputs'][here], made['segments'][here] = (
      target,
      np.append(tokenizer.bos_id, target[:-1]),
      1,
    )
    made['source'][there], made['source_segments'][there] = source, 1
    made['positions'][here], made['source_positions'][there] = np.arange(len(target)), np.arange(len(source))
    return made

  def summary(self, total, size):
    return Objective.summary(self, total, size)


def parts(total: int, count: int, bits: np.ndarray) -> np.ndarray:
  """`total` in `count` parts of at least 1, all ways alike likely: cuts at the places of the least bits."""
  cuts = np.sort(np.argsort(bits[: total - 1], kind='stable')[: count - 1]) + 1
  return np.diff(np.concatenate([[0], cuts, [total]]))
