"""Rows over a running text in which some targets count: the same ones, whatever the length of the rows."""

import functools
import math
from collections.abc import Sequence

import numpy as np

from tfm.data.corpus import INFINITE
from tfm.data.packing import protocol
from tfm.data.packing.concat import Concat
from tfm.data.tokens import InfiniteDocuments, Tokens


class Targets:
  """The tokens of a split that are to be predicted.

  The split is read as the packing `concat` reads it: every document followed by the end of a text, one after another.
  It is cut into spans of `span` targets, the least common multiple of the lengths, so that a span is some whole rows
  of each of them. Of the spans all count, the last of which may be shorter, or `limit // span` of the whole ones,
  spread evenly: the first of every so many.

  Attributes:
    span: targets of one span.
    spans: (first, stop) of each that counts, in the running text.

  Raises:
    ValueError: for no length or one below 1, a split that is no running text or shorter than the longest length, or a
      limit below 0 or of less than a span.
  """

  def __init__(self, tokens: Tokens, lengths: Sequence[int], limit: int = 0):
    """
    Args:
      limit: targets at most; 0: all.
    """
    if not lengths or min(lengths) < 1:
      raise ValueError(
        f'lengths={tuple(lengths)} must be whole numbers of tokens, at least one of them and each 1 or more'
      )
    if not isinstance(tokens, Tokens):
      what = (
        'has no end'
        if isinstance(tokens, InfiniteDocuments) or tokens.documents == INFINITE
        else 'is not of texts alone'
      )
      raise ValueError(f'{tokens.name} {what}, and lengths are compared on running text')
    if tokens.targets < max(lengths):
      raise ValueError(
        f'{tokens.name} has {tokens.targets} tokens, which do not fill one row of length={max(lengths)}; '
        'give a shorter one, or another split'
      )
    self.span = math.lcm(*lengths)
    if limit < 0 or 0 < limit < min(self.span, tokens.targets):
      raise ValueError(
        f'targets={limit} is less than the {self.span} tokens that are whole rows of every length; give 0 '
        '(all) or at least so many, or lengths that divide one another'
      )
    self._rows = Concat(shuffle=False).evaluation_rows(tokens, self.span)
    self._row = functools.lru_cache(maxsize=8)(
      self._rows.__getitem__
    )  # a window is read from two spans at most
    numbers = np.arange(len(self._rows))
    if 0 < limit < tokens.targets:
      whole, count = tokens.targets // self.span, limit // self.span
      numbers = np.arange(count) * whole // count
    firsts = numbers * self.span
    self.spans = list(zip(firsts.tolist(), np.minimum(firsts + self.span, tokens.targets).tolist()))

  def __len__(self) -> int:
    return sum(stop - first for first, stop in self.spans)

  def read(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets number first … stop - 1 of the running text, of which there are `span` at most."""
    here = range(first // self.span, (stop - 1) // self.span + 1)
    place = slice(first - here[0] * self.span, stop - here[0] * self.span)
    return tuple(
      np.concatenate([self._row(number)[field] for number in here])[place] for field in ('inputs', 'targets')
    )

  def bytes(self, token_bytes: np.ndarray) -> int:
    """The UTF-8 bytes that the targets stand for, of `token_bytes` [V] for each token."""
    return sum(int(token_bytes[self.read(first, stop)[1]].sum()) for first, stop in self.spans)


class Windows(protocol.Rows):
  """Rows of `length` tokens in which every target counts once, each at the end of a window.

  Beside the fields of all rows, `counted` int32 [T] is 1 where a target counts. Each row counts the next `stride`
  targets; what stands before them in the text, length - stride tokens, fills its beginning, so that they are read
  with at least so much context, or with all there is at the beginning of the text. Positions count from 0 in every
  row; behind the last token there is padding.

  stride = length is the non-overlapping protocol: a row counts all its targets, the first of which have next to no
  context. Any smaller one is the sliding window (Press et al. 2022, ALiBi, §2 and appendix B).

  Raises:
    ValueError: for a stride outside 1 … length.
  """

  def __init__(self, targets: Targets, length: int, stride: int):
    if not 1 <= stride <= length:
      raise ValueError(
        f'stride={stride} must lie in 1 … {length}, the length of a row; every target counts once'
      )
    self.length, self.tokens_per_epoch = length, len(targets)
    self._targets, self.stride = targets, stride
    firsts = [np.arange(first, stop, stride) for first, stop in targets.spans]
    stops = [np.minimum(first + stride, stop) for first, (_, stop) in zip(firsts, targets.spans)]
    self._blocks = np.stack([np.concatenate(firsts), np.concatenate(stops)], 1)

  def __len__(self):
    return len(self._blocks)

  def __getitem__(self, index: int) -> protocol.Row:
    if not 0 <= index < len(self):
      raise IndexError(index)
    first, stop = self._blocks[index].tolist()
    begin = max(0, first + self.stride - self.length)
    row, n = protocol.padding(self.length, (*protocol.FIELDS, 'counted')), stop - begin
    row['inputs'][:n], row['targets'][:n] = self._targets.read(begin, stop)
    row['positions'][:n], row['segments'][:n] = np.arange(n), 1
    row['counted'][first - begin : n] = 1
    return row
