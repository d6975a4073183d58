"""Documents one after another, cut into rows."""

import dataclasses
import functools

import numpy as np

from tfm.data import tokens as token_arrays
from tfm.data.packing import protocol


DOCUMENTS, ROWS = 0, 1  # what an order is for
WINDOW = 2**20  # rows that are shuffled together, at most


@dataclasses.dataclass(frozen=True)
class Concat(protocol.Packing):
  """One endless stream, every document followed by the end of a text, cut into rows.

  No padding. A row is one segment whose positions count from 0, so attention reaches over the ends
  of documents, as GPT-2 was trained (Radford et al. 2019).

  Attributes:
    shuffle: whether the rows of an epoch come in an order of their own. In the stream's order the
      rows of a batch are neighbours, and often all of one long document.
  """

  layout = 'contiguous'

  shuffle: bool = True

  def pack(self, tokens, length, seed):
    return _Rows(tokens, length, seed, self.shuffle and seed is not None)


class _Rows(protocol.Rows):
  def __init__(self, tokens: token_arrays.Tokens, length: int, seed: int | None, shuffle: bool):
    self.length, self.tokens_per_epoch = length, tokens.targets
    self._tokens, self._seed, self._shuffle = tokens, seed, shuffle
    self._window = min(tokens.targets // length, WINDOW)
    self._rows = functools.lru_cache(maxsize=2)(self._rows)
    self._order = functools.lru_cache(maxsize=3)(self._order)  # two windows meet three epochs

  def __len__(self):
    if self._seed is not None:
      return protocol.INFINITE
    return -(-self.tokens_per_epoch // self.length)

  def __getitem__(self, index: int) -> protocol.Row:
    if not 0 <= index < len(self):
      raise IndexError(index)
    if self._shuffle:
      window, place = divmod(index, self._window)
      index = window * self._window + int(self._rows(window)[place])
    row = protocol.padding(self.length)
    first = index * self.length
    count = self.length
    if self._seed is None:
      count = min(count, self.tokens_per_epoch - first)
    # With one token in front: the input of a target is the target before, and of the first, eos.
    places = np.arange(first - 1, first + count)
    stream = np.full(count + 1, self._tokens.eos_id)
    epochs, offsets = np.divmod(places, self.tokens_per_epoch)
    for epoch in np.unique(epochs[places >= 0]):
      here = epochs == epoch
      stream[here] = self._read(int(epoch), offsets[here])
    row['inputs'][:count], row['targets'][:count] = stream[:-1], stream[1:]
    row['positions'][:count] = np.arange(count)
    row['segments'][:count] = 1
    return row

  def _read(self, epoch: int, offsets: np.ndarray) -> np.ndarray:
    """The tokens at some offsets of an epoch."""
    order, ends = self._order(epoch)
    place = np.searchsorted(ends, offsets, side='right')
    document = order[place]
    left = ends[place] - 1 - offsets  # to the document's end, where eos stands
    stream = np.full(len(offsets), self._tokens.eos_id)
    inside = left > 0
    stream[inside] = self._tokens.ids[self._tokens.offsets[document + 1][inside] - left[inside]]
    return stream

  def _order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """The documents of an epoch, and where each ends in it, its eos included."""
    count = self._tokens.documents
    order = np.arange(count)
    if self._seed is not None:
      order = protocol.permutation(self._seed, epoch, count, DOCUMENTS)
    return order, np.cumsum(self._tokens.lengths[order] + 1)

  def _rows(self, window: int) -> np.ndarray:
    """The order of a window's rows."""
    return protocol.permutation(self._seed, window, self._window, ROWS)
