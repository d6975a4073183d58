"""Rows over a running text with counted targets: the same targets for every row length."""

import functools
import math
from collections.abc import Sequence

import numpy as np

from tfm.data.documents import INFINITE
from tfm.data.mixture import MixedDocuments
from tfm.data.packing import protocol
from tfm.data.packing.concat import Concat
from tfm.data.tokens import InfiniteDocuments, Tokens


class Targets:
  """The targets of a split.

  The split is read as by the packing `concat`: consecutive documents, each followed by the end-of-text token.
  It is divided into spans of `span` targets, the least common multiple of the lengths, so that a span
  consists of whole rows of every length. All spans count, the last of which may be shorter; with a limit,
  `limit // span` whole spans count, spread evenly over the split.

  Attributes:
    span: number of targets in a span.
    spans: (first, stop) of each counted span in the running text.

  Raises:
    ValueError: for no length or one below 1, a split that is no running text or is shorter than the longest
      length, or a limit below 0 or below a span.
  """

  def __init__(self, tokens: Tokens, lengths: Sequence[int], limit: int = 0):
    """
    Args:
      limit: maximum number of targets; 0: all.
    """
    if not lengths or min(lengths) < 1:
      raise ValueError(f'lengths={tuple(lengths)} must be a non-empty list of integers from 1 on')
    if isinstance(tokens, MixedDocuments):
      raise ValueError(
        f'{tokens.name} is a mixture, and length evaluation requires a running text; add one source to the '
        f'split: {" or ".join(f"/{name}" for name in tokens.parts)}'
      )
    if not isinstance(tokens, Tokens):
      what = (
        'has no end'
        if isinstance(tokens, InfiniteDocuments) or tokens.documents == INFINITE
        else 'is not of texts alone'
      )
      raise ValueError(f'{tokens.name} {what}, and length evaluation requires a running text')
    if tokens.targets < max(lengths):
      raise ValueError(
        f'{tokens.name} has {tokens.targets} tokens, fewer than one row of length={max(lengths)}; '
        'use a shorter length or another split'
      )
    self.span = math.lcm(*lengths)
    if limit < 0 or 0 < limit < min(self.span, tokens.targets):
      raise ValueError(
        f'targets={limit} is less than {self.span}, the least common multiple of the lengths; use 0 '
        '(all), a larger number, or lengths that divide one another'
      )
    self._rows = Concat(shuffle=False).evaluation_rows(tokens, self.span)
    self._row = functools.lru_cache(maxsize=8)(self._rows.__getitem__)  # a window reads at most two spans
    numbers = np.arange(len(self._rows))
    if 0 < limit < tokens.targets:
      whole, count = tokens.targets // self.span, limit // self.span
      numbers = np.arange(count) * whole // count
    firsts = numbers * self.span
    self.spans = list(zip(firsts.tolist(), np.minimum(firsts + self.span, tokens.targets).tolist()))

  def __len__(self) -> int:
    return sum(stop - first for first, stop in self.spans)

  def read(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets first … stop - 1 of the running text, at most `span` of them."""
    spans = range(first // self.span, (stop - 1) // self.span + 1)
    window = slice(first - spans[0] * self.span, stop - spans[0] * self.span)
    return tuple(
      np.concatenate([self._row(number)[field] for number in spans])[window]
      for field in ('inputs', 'targets')
    )

  def bytes(self, token_bytes: np.ndarray) -> int:
    """The number of UTF-8 bytes of the targets; `token_bytes` [V] is the number of each token."""
    return sum(int(token_bytes[self.read(first, stop)[1]].sum()) for first, stop in self.spans)


class Windows(protocol.Rows):
  """Rows of `length` tokens, in which every target counts once, at the end of a window.

  In addition to the fields of all rows, `counted` int32 [T] is 1 where a target counts. Each row counts the
  next `stride` targets and starts with the length - stride tokens before them, so that they have at least
  this context, or all of it at the start of the text. Positions count from 0 in every row; padding follows
  the last token.

  stride = length is the non-overlapping protocol: all targets of a row count, and the first have almost no
  context. A smaller stride is the sliding window (Press et al. 2022, ALiBi, §2 and appendix B).

  Raises:
    ValueError: for a stride outside 1 … length.
  """

  def __init__(self, targets: Targets, length: int, stride: int):
    if not 1 <= stride <= length:
      raise ValueError(f'stride={stride} must lie in 1 … {length}, the length of a row')
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
    start = max(0, first + self.stride - self.length)
    row, n = protocol.padding_row(self.length, (*protocol.FIELDS, 'counted')), stop - start
    row['inputs'][:n], row['targets'][:n] = self._targets.read(start, stop)
    row['positions'][:n], row['segments'][:n] = np.arange(n), 1
    row['counted'][first - start : n] = 1
    return row
