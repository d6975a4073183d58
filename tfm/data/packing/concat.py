"""Documents concatenated and divided into rows."""

import dataclasses
import functools

import numpy as np

from tfm.data import tokens as token_arrays
from tfm.data.documents import INFINITE
from tfm.data.packing import protocol


DOCUMENTS, ROWS = 0, 1  # the purposes of random permutations
WINDOW = 2**20  # the greatest number of rows that are shuffled together


@dataclasses.dataclass(frozen=True)
class Concat(protocol.Packing):
  """One infinite stream, in which every document is followed by the end of a text, divided into rows.

  There is no padding. A row is one segment with positions from 0, so attention crosses the ends of documents,
  as in the training of GPT-2 (Radford et al. 2019).

  Attributes:
    shuffle: whether the rows of an epoch are shuffled. In the order of the stream the rows of a batch are
      neighbors, and often all from one long document.
  """

  layout = 'contiguous'

  shuffle: bool = True

  def pack(self, tokens, length, seed):
    return _Rows(tokens, length, seed, self.shuffle and seed is not None)


class _Rows(protocol.Rows):
  def __init__(self, tokens: token_arrays.Tokens, length: int, seed: int | None, shuffle: bool):
    self.length, self.tokens_per_epoch = length, tokens.targets
    self._tokens, self._seed, self._shuffle = tokens, seed, shuffle
    self._window_size = min(tokens.targets // length, WINDOW)
    self._row_order = functools.lru_cache(maxsize=2)(self._row_order)
    self._document_order = functools.lru_cache(maxsize=3)(
      self._document_order
    )  # two windows meet three epochs

  def __len__(self):
    if self._seed is not None:
      return INFINITE
    return -(-self.tokens_per_epoch // self.length)

  def __getitem__(self, index: int) -> protocol.Row:
    if not 0 <= index < len(self):
      raise IndexError(index)
    if self._shuffle:
      window, place = divmod(index, self._window_size)
      index = window * self._window_size + int(self._row_order(window)[place])
    row = protocol.padding_row(self.length)
    first = index * self.length
    count = self.length
    if self._seed is None:
      count = min(count, self.tokens_per_epoch - first)
    # One token more at the front: the input of a target is the previous target, and eos for the first.
    places = np.arange(first - 1, first + count)
    stream = np.full(count + 1, self._tokens.eos_id)
    epochs, offsets = np.divmod(places, self.tokens_per_epoch)
    for epoch in np.unique(epochs[places >= 0]):
      in_epoch = epochs == epoch
      stream[in_epoch] = self._read(int(epoch), offsets[in_epoch])
    row['inputs'][:count], row['targets'][:count] = stream[:-1], stream[1:]
    row['positions'][:count] = np.arange(count)
    row['segments'][:count] = 1
    return row

  def _read(self, epoch: int, offsets: np.ndarray) -> np.ndarray:
    """Returns the tokens at some offsets of an epoch."""
    order, ends = self._document_order(epoch)
    place = np.searchsorted(ends, offsets, side='right')
    document = order[place]
    remaining = ends[place] - 1 - offsets  # the number of tokens to the document's end, where eos is
    stream = np.full(len(offsets), self._tokens.eos_id)
    inside = remaining > 0
    stream[inside] = self._tokens.ids[self._tokens.offsets[document + 1][inside] - remaining[inside]]
    return stream

  def _document_order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the documents of an epoch, and the offset where each ends, including its eos."""
    count = self._tokens.documents
    order = np.arange(count)
    if self._seed is not None:
      order = protocol.permutation(self._seed, epoch, count, DOCUMENTS)
    return order, np.cumsum(self._tokens.lengths[order] + 1)

  def _row_order(self, window: int) -> np.ndarray:
    """Returns the order of a window's rows."""
    return protocol.permutation(self._seed, window, self._window_size, ROWS)
