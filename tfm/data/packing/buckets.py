"""One pair per row; the pairs of a batch have similar lengths."""

import dataclasses
import functools
from typing import Annotated

import numpy as np
from annotated_types import Gt

from tfm.data import tokens as token_arrays
from tfm.data.documents import INFINITE
from tfm.data.packing import protocol
from tfm.spec import Size


DOCUMENTS, BATCHES = 0, 1  # the purposes of random permutations


@dataclasses.dataclass(frozen=True)
class Buckets(protocol.Packing):
  """Batches by token count (Vaswani et al. 2017, §5.1): the shorter the pairs, the more of them.

  A pair goes into the narrowest bucket that holds its longer side: of `length` tokens, a half, a quarter …
  down to about `least`, or with a smaller `ratio` a half, a third … All pairs of a batch come from one
  bucket, and a batch of
  shorter rows has more of them: k × batch_size rows of length / k tokens, rounded down. So there are a few
    shapes, each compiled once.

  Every epoch has its own random order of the pairs in a bucket and of the batches. The last batch of a bucket
  in an epoch is filled up with padding.

  Attributes:
    least: the minimum length of a bucket.
    ratio: the minimum ratio of the lengths of two successive buckets: the smaller, the fewer padding tokens
      and the more shapes to compile.

  Raises:
    ValueError: for a `least` below 1, or a `ratio` of 1 or less.
  """

  layout = 'contiguous'
  document_kinds = (('source', 'target'),)
  has_fixed_batch_shape = False

  least: Size = 8
  ratio: Annotated[float, Gt(1)] = 2.0

  def __post_init__(self):
    if self.least < 1:
      raise ValueError(f'least={self.least} must be at least 1')
    if self.ratio <= 1:
      raise ValueError(f'ratio={self.ratio} must be greater than 1, such as 1.25')

  def pack(self, tokens, length, seed):
    return _Rows(tokens, length, seed, bucket_divisors(length, self.least, self.ratio))


def bucket_divisors(length: int, least: int, ratio: float) -> list[int]:
  """Returns k of every bucket, whose rows have length // k tokens: 1, 2, 4, 8 … for a ratio of 2."""
  divisors = [1]
  for k in range(2, length // least + 1):
    if length // k * ratio <= length // divisors[-1]:
      divisors.append(k)
  return divisors


class _Rows(protocol.Rows):
  """Row i is the i-th pair that fits."""

  def __init__(self, pairs: token_arrays.Pairs, length: int, seed: int | None, divisors: list[int]):
    self.length, self.tokens_per_epoch = length, pairs.targets
    self._pairs, self._seed = pairs, seed
    self._documents = protocol.fitting_documents(pairs, length)
    longest = pairs.sequence_lengths[self._documents].max(1)
    self._divisors = np.ones(len(longest), int)
    for k in divisors:
      self._divisors[longest <= length // k] = k
    self._plan_epoch = functools.lru_cache(maxsize=2)(self._plan_epoch)

  def __len__(self):
    return len(self._documents)

  def __getitem__(self, index: int) -> protocol.Row:
    if not 0 <= index < len(self):
      raise IndexError(index)
    row = protocol.padding_row(self.length // self._divisors[index], protocol.PAIR_FIELDS)
    protocol.write_document(row, self._pairs, self._documents[index], segment=1)
    return row

  def count_batches(self, batch_size: int) -> int:
    return INFINITE if self._seed is not None else len(self._plan_epoch(0, batch_size))

  def batch_rows(self, index: int, batch_size: int):
    epoch, place = divmod(index, len(self._plan_epoch(0, batch_size)))
    return self._plan_epoch(epoch, batch_size)[place]

  def _plan_epoch(self, epoch: int, batch_size: int) -> list[list[int | None]]:
    """Returns the rows of all batches of an epoch."""
    order = np.arange(len(self))
    if self._seed is not None:
      order = protocol.permutation(self._seed, epoch, len(self), DOCUMENTS)
    batches = []
    for k in np.unique(self._divisors)[::-1]:
      members, size = order[self._divisors[order] == k].tolist(), batch_size * int(k)
      members += [None] * (-len(members) % size)
      batches += [members[i : i + size] for i in range(0, len(members), size)]
    if self._seed is None:
      return batches
    return [batches[i] for i in protocol.permutation(self._seed, epoch, len(batches), BATCHES)]
