"""Two texts per row; the second follows the first, or comes from another document."""

import dataclasses

import numpy as np

from tfm.data import tokens as token_arrays
from tfm.data.documents import INFINITE
from tfm.data.packing import protocol


ROWS, SPLIT, COIN, OTHER, PLACE = 0, 1, 2, 3, 4  # the purposes of random bits


@dataclasses.dataclass(frozen=True)
class SentencePairs(protocol.Packing):
  """Packs: end of text, A, end of text, B, end of text (Devlin et al. 2019, §3.1, Task 2, and appendix A.2).

  Documents are divided into pieces that fill a row, and a piece is divided at a random place into A and B. In
  half of the rows B is unchanged (`next` is 1); in the others, as many tokens from a random place of another
  document replace it (`next` is 0). `types` is 0 up to the end of A, and 1 after it. The end of a text takes
  the place of BERT's [CLS] and [SEP]. A piece of fewer than two tokens is skipped.

  Every epoch has its own random order, places and replacements.

  Raises:
    ValueError: from `pack`, for fewer than two documents, or a length below 5.
  """

  layout = 'contiguous'
  extra_fields = frozenset({'types', 'next'})

  def pack(self, tokens, length, seed):
    return _Rows(tokens, length, seed)


class _Rows(protocol.Rows):
  def __init__(self, tokens: token_arrays.Tokens, length: int, seed: int | None):
    if length < 5:
      raise ValueError(f'length={length} has no room for two texts and three ends; use at least 5')
    self._tokens, self._seed, self.length = tokens, seed, length
    room = length - 3
    counts = -(-tokens.lengths // room)
    document = np.repeat(np.arange(tokens.documents), counts)
    start = (np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)) * room
    size = np.minimum(tokens.lengths[document] - start, room)
    long_enough = size >= 2
    self._pieces = np.stack([document, start, size], 1)[long_enough]
    self._others = np.flatnonzero(tokens.lengths > 0)
    if not len(self._pieces) or len(self._others) < 2:
      raise ValueError(
        f'{tokens.name} has fewer than two documents with text, so no second text can come from another '
        "document; use packing='concat'"
      )
    self.tokens_per_epoch = int(self._pieces[:, 2].sum())

  def __len__(self):
    return len(self._pieces) if self._seed is None else INFINITE

  def __getitem__(self, index: int) -> protocol.Row:
    if not 0 <= index < len(self):
      raise IndexError(index)
    epoch, place = divmod(index, len(self._pieces))
    seed = 0 if self._seed is None else self._seed
    if self._seed is not None:
      place = protocol.permutation(seed, epoch, len(self._pieces), ROWS)[place]
    document, start, size = self._pieces[place].tolist()
    split, coin, other, offset = (
      int(protocol.random_bits(seed, index, 1, purpose)[0]) for purpose in (SPLIT, COIN, OTHER, PLACE)
    )
    middle = start + 1 + split % (size - 1)
    first = self._text(document, start, middle - start)
    second = self._text(document, middle, start + size - middle)
    follows = coin % 2
    if not follows:
      others = self._others[self._others != document]
      other = int(others[other % len(others)])
      last = max(int(self._tokens.lengths[other]) - len(second), 0)
      second = self._text(other, offset % (last + 1), len(second))
    return self._row(first, second, follows)

  def _row(self, first: np.ndarray, second: np.ndarray, follows: int) -> protocol.Row:
    end = [self._tokens.eos_id]
    text = np.concatenate([end, first, end, second, end])
    row = protocol.padding_row(self.length) | dict(
      types=np.zeros(self.length, np.int32), next=np.int32(follows)
    )
    span = slice(len(text))
    row['inputs'][span], row['positions'][span], row['segments'][span] = text, np.arange(len(text)), 1
    row['targets'][: len(text) - 1] = text[1:]
    row['types'][len(first) + 2 : len(text)] = 1
    return row

  def _text(self, document: int, start: int, size: int) -> np.ndarray:
    begin = int(self._tokens.offsets[document]) + start
    return self._tokens.ids[begin : min(begin + size, int(self._tokens.offsets[document + 1]))]
