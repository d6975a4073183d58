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
  quarter … down to about `least`. A batch is of one bucket, and has as many more rows as it has shorter
  ones: batch_size × length tokens a side in any bucket, so there are a few shapes, each compiled once.

  Every epoch has an order of its own, of pairs in a bucket and of batches. The last batch of a bucket in
  an epoch is filled up with padding.

  Attributes:
    least: a bucket is at least so long.
  """

  layout = 'whole'
  takes = (('source', 'target'),)

  least: int = 8

  def __post_init__(self):
    if self.least < 1:
      raise ValueError(f'least={self.least} is no length; give at least 1')

  def pack(self, tokens, length, seed):
    return _Rows(tokens, length, seed, self.least)


class _Rows(protocol.Rows):
  """Row i is the i-th pair that fits."""

  def __init__(self, pairs: token_arrays.Pairs, length: int, seed: int | None, least: int):
    self.length, self.tokens_per_epoch = length, pairs.targets
    self._pairs, self._seed = pairs, seed
    self._documents = protocol.within(pairs, length)
    longest = pairs.sizes[self._documents].max(1)
    self._lengths = np.full(len(longest), length)
    while (half := length // 2) >= least and length % 2 == 0:
      self._lengths[longest <= half] = length = half
    self._plan = functools.lru_cache(maxsize=2)(self._plan)

  def __len__(self):
    return len(self._documents)

  def __getitem__(self, index: int) -> protocol.Row:
    if not 0 <= index < len(self):
      raise IndexError(index)
    row = protocol.padding(self._lengths[index], protocol.PAIR_FIELDS)
    protocol.put(row, self._pairs, self._documents[index], segment=1)
    return row

  def batches(self, batch_size: int) -> int:
    return protocol.ENDLESS if self._seed is not None else len(self._plan(0, batch_size))

  def batch(self, index: int, batch_size: int):
    epoch, place = divmod(index, len(self._plan(0, batch_size)))
    return self._plan(epoch, batch_size)[place]

  def _plan(self, epoch: int, batch_size: int) -> list[list[int | None]]:
    """The rows of all batches of an epoch."""
    order = np.arange(len(self))
    if self._seed is not None:
      order = protocol.permutation(self._seed, epoch, len(self), DOCUMENTS)
    batches = []
    for length in np.unique(self._lengths):
      members, size = order[self._lengths[order] == length].tolist(), batch_size * (self.length // int(length))
      members += [None] * (-len(members) % size)
      batches += [members[i:i + size] for i in range(0, len(members), size)]
    if self._seed is None:
      return batches
    return [batches[i] for i in protocol.permutation(self._seed, epoch, len(batches), BATCHES)]
