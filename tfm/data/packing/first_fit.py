"""Whole documents side by side in rows."""

import dataclasses
import functools

import numpy as np

from tfm.data import progress
from tfm.data import tokens as token_arrays
from tfm.data.packing import protocol

ROWS, PLAN = 0, 1  # what an order is for


@dataclasses.dataclass(frozen=True)
class FirstFit(protocol.Packing):
  """Documents kept apart by segments, each put into the first open row with room for it.

  A document begins with eos as its first input and has eos as its last target; positions restart
  at 0. What is longer than a row is cut into pieces, each with the token before it as its first
  input. First-fit bin packing: Johnson 1973; for Transformers: Krell et al. 2021, arXiv:2107.02027.

  The rows are planned once for a seed, from lengths alone, and every epoch has an order of its own
  of the same rows. Attention stays within segments, so only the company in a batch is affected.

  Attributes:
    bins: rows that are open at a time; of more, the fullest is closed.
  """

  layout = 'packed'

  bins: int = 64

  def __post_init__(self):
    if self.bins < 1:
      raise ValueError(f'bins={self.bins} leaves no row open; give at least 1')

  def rows(self, tokens: token_arrays.Tokens, length: int, seed: int) -> protocol.Rows:
    protocol.check(tokens, length, seed)
    return _Rows(tokens, length, seed, self.bins)

  def evaluation_rows(self, tokens: token_arrays.Tokens, length: int) -> protocol.Rows:
    protocol.check(tokens, length)
    return _Rows(tokens, length, None, self.bins)


class _Rows(protocol.Rows):

  def __init__(self, tokens: token_arrays.Tokens, length: int, seed: int | None, bins: int):
    self.length, self.tokens_per_epoch = length, tokens.targets
    self._tokens, self._seed = tokens, seed
    self._document, self._start, self._size = _pieces(tokens, length)
    count = len(self._size)
    order = np.arange(count) if seed is None else protocol.permutation(seed, 0, count, PLAN)
    sizes = progress.track(self._size[order].tolist(), f'packing {tokens.name}', count)
    row_of = np.empty(count, np.int64)
    row_of[order] = _first_fit(sizes, length, bins)
    self._by_row = order[np.argsort(row_of[order], kind='stable')]
    self._bounds = np.concatenate([[0], np.cumsum(np.bincount(row_of))])
    self._count = len(self._bounds) - 1
    self._order = functools.lru_cache(maxsize=2)(self._order)

  def __len__(self):
    return self._count if self._seed is None else protocol.ENDLESS

  def __getitem__(self, index: int) -> protocol.Row:
    if not 0 <= index < len(self):
      raise IndexError(index)
    epoch, place = divmod(index, self._count)
    number = self._order(epoch)[place]
    row = protocol.padding(self.length)
    first = 0
    for segment, piece in enumerate(self._by_row[self._bounds[number]:self._bounds[number + 1]], 1):
      stream = self._stream(piece)
      here = slice(first, first + len(stream) - 1)
      row['inputs'][here], row['targets'][here] = stream[:-1], stream[1:]
      row['positions'][here] = np.arange(len(stream) - 1)
      row['segments'][here] = segment
      first = here.stop
    return row

  def _stream(self, piece: int) -> np.ndarray:
    """The tokens of a piece, with the one before it in front."""
    begin, end = self._tokens.offsets[self._document[piece]:][:2]
    first = begin + self._start[piece] - 1
    stream = np.full(self._size[piece] + 1, self._tokens.eos_id)
    low, high = max(first, begin), min(first + len(stream), end)  # outside of the document is eos
    stream[low - first:high - first] = self._tokens.ids[low:high]
    return stream

  def _order(self, epoch: int) -> np.ndarray:
    if self._seed is None:
      return np.arange(self._count)
    return protocol.permutation(self._seed, epoch, self._count, ROWS)


def _pieces(tokens: token_arrays.Tokens, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The document, the first target and the number of targets of every piece."""
  targets = tokens.lengths + 1
  counts = -(-targets // length)
  document = np.repeat(np.arange(tokens.documents), counts)
  first = np.repeat(np.cumsum(counts) - counts, counts)
  start = (np.arange(len(document)) - first) * length
  return document, start, np.minimum(targets[document] - start, length)


def _first_fit(sizes, length: int, bins: int) -> list[int]:
  """The row of each size."""
  rows, room, number, count = [], [], [], 0  # of the open rows: what is left, and which they are
  for size in sizes:
    if size == length:  # fills a row alone
      rows.append(count)
      count += 1
      continue
    place = next((i for i, left in enumerate(room) if left >= size), None)
    if place is None:
      if len(room) == bins:
        fullest = room.index(min(room))
        del room[fullest], number[fullest]
      place = len(room)
      room.append(length)
      number.append(count)
      count += 1
    rows.append(number[place])
    room[place] -= size
    if not room[place]:
      del room[place], number[place]
  return rows
