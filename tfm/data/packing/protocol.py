"""What a packing is: a split's tokens as rows of one length, each a pure function of its index."""

import abc
import dataclasses
import sys
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tfm.data import tokens as token_arrays

ENDLESS = sys.maxsize
FIELDS = 'inputs', 'targets', 'positions', 'segments'

Row = dict[str, np.ndarray]


class Rows(Sequence):
  """Random-access rows: `rows[i]` is a dict of int32 [T].

    inputs     tokens
    targets    the tokens that follow
    positions  of the inputs
    segments   1, 2, … by document; 0 is padding, whose targets do not count

  Attributes:
    length: T.
    tokens_per_epoch: targets in one pass over the split.
  """

  length: int
  tokens_per_epoch: int


@dataclasses.dataclass(frozen=True)
class Packing(abc.ABC):
  """How documents are put into rows; the fields of a subclass are the literals of its spec.

  Attributes:
    layout: what its rows promise of positions: 'whole', one document a row from position 0, or 'packed',
      two tokens of a document being as far apart in position as in the row.
  """

  layout: ClassVar[str]

  @abc.abstractmethod
  def rows(self, tokens: token_arrays.Tokens, length: int, seed: int) -> Rows:
    """The endless rows of training: documents in an order of their own for each epoch.

    Row i depends on (tokens, length, seed, i) only; every token of the split, and the end of every
    document, is the target once in an epoch.

    Raises:
      ValueError: if the split is shorter than one row, or for a length below 1 or a seed below 0.
    """

  @abc.abstractmethod
  def evaluation_rows(self, tokens: token_arrays.Tokens, length: int) -> Rows:
    """One pass in the order of the split; the end of what is not full is padding.

    Raises:
      ValueError: for a length below 1.
    """


def check(tokens: token_arrays.Tokens, length: int, seed: int | None = None):
  """Refuses what no packing can honour; a seed stands for training."""
  if length < 1:
    raise ValueError(f'length={length} is no row; give at least 1')
  if seed is None:
    return
  if not 0 <= seed < 2**64:
    raise ValueError(f'seed={seed} is not within 0 and 2**64; give a small positive integer')
  if tokens.targets < length:
    raise ValueError(f'{tokens.name} is too short: {tokens.targets} tokens do not fill one row of '
                     f'length={length}; shorten the length or give more text')


def permutation(seed: int, epoch: int, size: int, purpose: int = 0) -> np.ndarray:
  """A random order, int64 [size]; of raw bits, which numpy promises never to change."""
  key, counter = np.array([seed, epoch], np.uint64), np.array([0, 0, 0, purpose], np.uint64)
  return np.argsort(np.random.Philox(key=key, counter=counter).random_raw(size), kind='stable')


def padding(length: int) -> Row:
  """A row without any targets."""
  return {field: np.zeros(length, np.int32) for field in FIELDS}
