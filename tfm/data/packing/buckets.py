"""One pair a row, and in a batch pairs of like length."""

import dataclasses
import functools

import numpy as np

from tfm.data import tokens as token_arrays
from tfm.data.packing import protocol


DOCUMENTS, BATCHES = 0, 1  # what an order is for


@dataclasses.dataclass(frozen=True)
class Buckets(protocol.Packing):
  """Batches by token count (Vaswani et al. 2017, §5.1): the shorter the pairs, the more of them.

  A pair goes into the narrowest bucket that holds its longer side: of `length` tokens, of a half, a
  quarter … down to about `least`, or for a smaller `ratio` of a half, a third … A batch is of one bucket, and
  has as many more rows as it has shorter ones: k × batch_size of length / k, rounded down, so there are a few
  shapes, each compiled once.

  Every epoch has an order of its own, of pairs in a bucket and of batches. The last batch of a bucket in
  an epoch is filled up with padding.

  Attributes:
    least: a bucket is at least so long.
    ratio: and at least by so much shorter than the next: the smaller, the fewer tokens of padding and the
      more shapes to compile.

  Raises:
    ValueError: for a `least` below 1, or a `ratio` of 1 or less.
  """

  layout = 'contiguous'
  document_kinds = (('source', 'target'),)
  has_fixed_batch_shape = False

  least: int = 8
  ratio: float = 2.0

  def __post_init__(self):
    if self.least < 1:
      raise ValueError(f'least={self.least} is no length; give at least 1')
    if self.ratio <= 1:
      raise ValueError(f'ratio={self.ratio} makes no bucket shorter; give more than 1, such as 1.25')

  def pack(self, tokens, length, seed):
    return _Rows(tokens, length, seed, parts(length, self.least, self.ratio))


def parts(length: int, least: int, ratio: float) -> list[int]:
  """k of every bucket, whose rows are of length // k tokens: 1, 2, 4, 8 … for a ratio of 2."""
  found = [1]
  for k in range(2, length // least + 1):
    if length // k * ratio <= length // found[-1]:
      found.append(k)
  return found


class _Rows(protocol.Rows):
  """Row i is the i-th pair that fits."""

  def __init__(self, pairs: token_arrays.Pairs, length: int, seed: int | None, parts: list[int]):
    self.length, self.tokens_per_epoch = length, pairs.targets
    self._pairs, self._seed = pairs, seed
    self._documents = protocol.within(pairs, length)
    longest = pairs.sizes[self._documents].max(1)
    self._parts = np.ones(len(longest), int)
    for k in parts:
      self._parts[longest <= length // k] = k
    self._plan = functools.lru_cache(maxsize=2)(self._plan)

  def __len__(self):
    return len(self._documents)

  def __getitem__(self, index: int) -> protocol.Row:
    if not 0 <= index < len(self):
      raise IndexError(index)
    row = protocol.padding(self.length // self._parts[index], protocol.PAIR_FIELDS)
    protocol.put(row, self._pairs, self._documents[index], segment=1)
    return row

  def batches(self, batch_size: int) -> int:
    return protocol.INFINITE if self._seed is not None else len(self._plan(0, batch_size))

  def batch(self, index: int, batch_size: int):
    epoch, place = divmod(index, len(self._plan(0, batch_size)))
    return self._plan(epoch, batch_size)[place]

  def _plan(self, epoch: int, batch_size: int) -> list[list[int | None]]:
    """The rows of all batches of an epoch."""
    order = np.arange(len(self))
    if self._seed is not None:
      order = protocol.permutation(self._seed, epoch, len(self), DOCUMENTS)
    batches = []
    for k in np.unique(self._parts)[::-1]:
      members, size = order[self._parts[order] == k].tolist(), batch_size * int(k)
      members += [None] * (-len(members) % size)
      batches += [members[i : i + size] for i in range(0, len(members), size)]
    if self._seed is None:
      return batches
    return [batches[i] for i in protocol.permutation(self._seed, epoch, len(batches), BATCHES)]
