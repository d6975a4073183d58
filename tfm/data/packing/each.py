"""One document a row, with what is to be told of it."""

import dataclasses
import functools
import logging

import numpy as np

from tfm.data import tokens as token_arrays
from tfm.data.packing import protocol

ORDER = 0  # what bits are for

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Each(protocol.Packing):
  """end of text, text (Devlin et al. 2019, §3: the end of a text stands where BERT has [CLS]).

  A text that is longer than a row is cut, and a warning counts such. `classes` is the class of the text [], or
  of each of its words [T], at its first token, with -1 where there is none to tell.

  Every epoch has an order of its own.
  """

  layout = 'whole'
  takes = ('text', 'label'), ('text', 'labels')
  gives = frozenset({'classes'})

  def check(self, tokens, length):
    protocol.check_length(length)  # a row is filled up with padding, so nothing is too short

  def pack(self, tokens, length, seed):
    return _TextRows(tokens, length, seed)


class _Rows(protocol.Rows):
  """Row i is the i-th document, or of training the i-th of an order of each epoch."""

  def __init__(self, documents: protocol.Documents, length: int, seed: int | None):
    self.length, self.tokens_per_epoch = length, documents.targets
    self._documents, self._seed = documents, seed
    self._order = functools.lru_cache(maxsize=2)(self._order)

  def __len__(self):
    return self._documents.documents if self._seed is None else protocol.ENDLESS

  def __getitem__(self, index: int) -> protocol.Row:
    if not 0 <= index < len(self):
      raise IndexError(index)
    if self._seed is None:
      return self._row(index)
    epoch, place = divmod(index, self._documents.documents)
    return self._row(int(self._order(epoch)[place]))

  def padding(self, like):
    return super().padding(like) | dict(classes=np.full_like(like['classes'], -1))

  def _order(self, epoch: int) -> np.ndarray:
    return protocol.permutation(self._seed, epoch, self._documents.documents, ORDER)


class _TextRows(_Rows):

  def __init__(self, labelled: token_arrays.Labelled, length: int, seed: int | None):
    super().__init__(labelled, length, seed)
    longer = labelled.text.lengths >= length
    if longer.any():
      _log.warning('%s: %d of %d texts are longer than %d tokens, the longest of %d, and are cut', labelled.name,
                   longer.sum(), len(longer), length - 1, labelled.text.lengths.max())

  def _row(self, number: int) -> protocol.Row:
    text, classes = self._documents.text, self._documents.classes
    first = int(text.offsets[number])
    size = min(int(text.offsets[number + 1]) - first, self.length - 1)
    row = protocol.padding(self.length, ('inputs', 'positions', 'segments'))
    row['inputs'][0], row['inputs'][1:size + 1] = text.eos_id, text.ids[first:first + size]
    row['positions'][:size + 1], row['segments'][:size + 1] = np.arange(size + 1), 1
    if not self._documents.words:
      return row | dict(classes=np.int32(classes[number]))
    row['classes'] = np.full(self.length, -1, np.int32)
    row['classes'][1:size + 1] = classes[first:first + size]
    return row
