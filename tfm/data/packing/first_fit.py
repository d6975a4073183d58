"""Several whole documents per row."""

import abc
import dataclasses
import functools
import operator
from collections.abc import Iterable, Sequence

import numpy as np

from tfm.data import progress_bar
from tfm.data import tokens as token_arrays
from tfm.data.documents import INFINITE
from tfm.data.packing import protocol
from tfm.spec import Size


ROWS, PLAN = 0, 1  # the purposes of random permutations


@dataclasses.dataclass(frozen=True)
class FirstFit(protocol.Packing):
  """Documents separated by segment ids, each in the first open row with enough room.

  A document begins with eos as its first input and has eos as its last target; positions restart at 0. A text
  that is longer than a row is divided into pieces, each with the previous token as its first input. A row
  holds as many pairs as fit both its sides, and a pair is never divided. First-fit bin packing: Johnson 1973;
  for Transformers: Krell et al. 2021, arXiv:2107.02027.

  The rows are planned once for a seed, from the lengths alone, and every epoch has the same rows in its own
  random order. Attention stays within segments, so this only affects which documents share a batch.

  Attributes:
    bins: the maximum number of open rows; if there are more, the fullest is closed.
  """

  layout = 'packed'
  document_kinds = ('text',), ('source', 'target')

  bins: Size = 64

  def __post_init__(self):
    if self.bins < 1:
      raise ValueError(f'bins={self.bins} must be at least 1')

  def pack(self, tokens, length, seed):
    rows_class = _PairRows if isinstance(tokens, token_arrays.Pairs) else _TextRows
    return rows_class(tokens, length, seed, self.bins)


class _Rows(protocol.Rows):
  def __init__(self, tokens, length: int, seed: int | None, bins: int):
    self.length, self.tokens_per_epoch = length, tokens.targets
    self._tokens, self._seed = tokens, seed
    sizes = self._sizes(tokens)
    count = len(sizes)
    order = np.arange(count) if seed is None else protocol.permutation(seed, 0, count, PLAN)
    row_of = np.empty(count, np.int64)
    row_of[order] = _first_fit(
      progress_bar.track(map(tuple, sizes[order].tolist()), f'packing {tokens.name}', count), length, bins
    )
    self._by_row = order[np.argsort(row_of[order], kind='stable')]
    self._bounds = np.concatenate([[0], np.cumsum(np.bincount(row_of))])
    self._count = len(self._bounds) - 1
    self._order = functools.lru_cache(maxsize=2)(self._order)

  @abc.abstractmethod
  def _sizes(self, tokens) -> np.ndarray:
    """Returns the number of tokens of each piece to pack, [pieces, sequences]."""

  @abc.abstractmethod
  def _row(self, pieces: Sequence[int]) -> protocol.Row:
    """Returns the row of some pieces."""

  def __len__(self):
    return self._count if self._seed is None else INFINITE

  def __getitem__(self, index: int) -> protocol.Row:
    if not 0 <= index < len(self):
      raise IndexError(index)
    epoch, place = divmod(index, self._count)
    number = self._order(epoch)[place]
    return self._row(self._by_row[self._bounds[number] : self._bounds[number + 1]])

  def _order(self, epoch: int) -> np.ndarray:
    if self._seed is None:
      return np.arange(self._count)
    return protocol.permutation(self._seed, epoch, self._count, ROWS)


class _PairRows(_Rows):
  def _sizes(self, tokens):
    self._documents = protocol.fitting_documents(tokens, self.length)
    return tokens.sequence_lengths[self._documents]

  def _row(self, pieces):
    row, starts = protocol.padding_row(self.length, protocol.PAIR_FIELDS), (0, 0)
    for segment, piece in enumerate(pieces, 1):
      starts = protocol.write_document(row, self._tokens, self._documents[piece], segment, starts)
    return row


class _TextRows(_Rows):
  def _sizes(self, tokens):
    """Divides each document into as few pieces as possible."""
    targets = tokens.lengths + 1
    counts = -(-targets // self.length)
    self._document = np.repeat(np.arange(tokens.documents), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    self._start = (np.arange(len(self._document)) - first) * self.length
    self._size = np.minimum(targets[self._document] - self._start, self.length)
    return self._size[:, None]

  def _row(self, pieces):
    row = protocol.padding_row(self.length)
    first = 0
    for segment, piece in enumerate(pieces, 1):
      stream = self._stream(piece)
      span = slice(first, first + len(stream) - 1)
      row['inputs'][span], row['targets'][span] = stream[:-1], stream[1:]
      row['positions'][span] = np.arange(len(stream) - 1)
      row['segments'][span] = segment
      first = span.stop
    return row

  def _stream(self, piece: int) -> np.ndarray:
    """Returns the tokens of a piece, after the token before it."""
    begin, end = self._tokens.offsets[self._document[piece] :][:2]
    first = begin + self._start[piece] - 1
    stream = np.full(self._size[piece] + 1, self._tokens.eos_id)
    low, high = max(first, begin), min(first + len(stream), end)  # eos outside of the document
    stream[low - first : high - first] = self._tokens.ids[low:high]
    return stream


def _first_fit(sizes: Iterable[tuple[int, ...]], length: int, bins: int) -> list[int]:
  """Returns the row of each piece, given its number of tokens in each sequence of a row."""
  rows, room, number, count = [], [], [], 0  # of the open rows: the remaining room, and the number
  for size in sizes:
    if max(size) == length:  # fills a row alone
      rows.append(count)
      count += 1
      continue
    place = next((i for i, free in enumerate(room) if all(map(operator.le, size, free))), None)
    if place is None:
      if len(room) == bins:
        fullest = min(range(bins), key=lambda i: sum(room[i]))
        del room[fullest], number[fullest]
      place = len(room)
      room.append((length,) * len(size))
      number.append(count)
      count += 1
    rows.append(number[place])
    room[place] = tuple(map(operator.sub, room[place], size))
    if not min(room[place]):
      del room[place], number[place]
  return rows
