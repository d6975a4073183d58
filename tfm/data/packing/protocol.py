"""What a packing is: a split's tokens as rows of one length, each a pure function of its index."""

import abc
import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from tfm.data import images
from tfm.data import tokens as token_arrays
from tfm.data.corpus import INFINITE


FIELDS = 'inputs', 'targets', 'positions', 'segments'
PAIR_FIELDS = *FIELDS, 'source', 'source_positions', 'source_segments'

Row = dict[str, np.ndarray]
# What is packed: a split's documents.
Documents = (
  token_arrays.Tokens
  | token_arrays.InfiniteDocuments
  | token_arrays.Pairs
  | token_arrays.LabelledTexts
  | token_arrays.AnsweredTexts
  | images.Images
)

_log = logging.getLogger(__name__)


class Rows(Sequence):
  """Random-access rows: `rows[i]` is a dict of int32 [T], and what else a packing gives.

    inputs     tokens
    targets    the tokens that follow
    positions  of the inputs
    segments   1, 2, … by document; 0 is padding, whose targets do not count

  and, for pairs, of which the four above are the target:

    source     tokens, the end of the text among them
    source_positions, source_segments     of them, the segments being those of the target

  Attributes:
    length: T, at most.
    tokens_per_epoch: targets in one pass over the split.
  """

  length: int
  tokens_per_epoch: int

  def batches(self, batch_size: int) -> int:
    """How many batches of `batch_size` rows there are."""
    return -(-len(self) // batch_size)

  def batch(self, index: int, batch_size: int) -> Sequence[int | None]:
    """The rows of a batch, the first of which is one, all of one shape; None stands for padding."""
    first = index * batch_size
    return [i if i < len(self) else None for i in range(first, first + batch_size)]

  def padding(self, like: Row) -> Row:
    """A row of no account, of the shape of one: what stands in a batch where there is no row."""
    return {field: np.zeros_like(x) for field, x in like.items()}


class OneEach(Rows):
  """Row i is made of the i-th document, or in training of the i-th of an order of each epoch; of documents
  without end, of the next after a place of the seed's own.
  """

  def __init__(self, documents: Documents, length: int, seed: int | None, numbers: np.ndarray | None = None):
    """
    Args:
      numbers: of the documents to read, where it is not all.
    """
    self.length, self.tokens_per_epoch = length, documents.targets
    self._documents, self._seed, self._numbers = documents, seed, numbers
    self._count = documents.documents if numbers is None else len(numbers)
    self._order = functools.lru_cache(maxsize=2)(self._order)

  @abc.abstractmethod
  def _row(self, number: int, index: int) -> Row:
    """The row of a document, `index` being its place in the stream."""

  def __len__(self):
    return self._count if self._seed is None else INFINITE

  def __getitem__(self, index: int) -> Row:
    if not 0 <= index < len(self):
      raise IndexError(index)
    if self._seed is None:
      place = index
    elif self._count == INFINITE:
      place = int(bits(self._seed, 0, 1)[0]) // 4 + index
    else:
      epoch, place = divmod(index, self._count)
      place = int(self._order(epoch)[place])
    return self._row(place if self._numbers is None else int(self._numbers[place]), index)

  def _order(self, epoch: int) -> np.ndarray:
    return permutation(self._seed, epoch, self._count)


class Mapped(Rows):
  """Rows of which each is made into another by `make(row, index)`."""

  def __init__(self, rows: Rows, make: Callable[[Row, int], Row]):
    self._rows, self._make = rows, make
    self.length, self.tokens_per_epoch = rows.length, rows.tokens_per_epoch

  def __len__(self):
    return len(self._rows)

  def __getitem__(self, index: int) -> Row:
    return self._make(self._rows[index], index)

  def batches(self, batch_size):
    return self._rows.batches(batch_size)

  def batch(self, index, batch_size):
    return self._rows.batch(index, batch_size)

  def padding(self, like):
    return self._rows.padding(like)


@dataclasses.dataclass(frozen=True)
class Packing(abc.ABC):
  """How documents are put into rows; the fields of a subclass are the literals of its spec.

  Attributes:
    layout: what its rows promise of positions: 'contiguous', one document a row from position 0, or 'packed',
      two tokens of a document being as far apart in position as in the row.
    document_kinds: the fields of documents that it packs: ('text',), ('source', 'target'), ….
    supports_infinite: whether it packs documents without end.
    has_fixed_batch_shape: whether all its batches are of one shape.
    extra_fields: what its rows have besides the fields that all have, for an objective that wants it.
  """

  layout: ClassVar[str]
  document_kinds: ClassVar[tuple[tuple[str, ...], ...]] = (('text',),)
  supports_infinite: ClassVar[bool] = False
  has_fixed_batch_shape: ClassVar[bool] = True
  extra_fields: ClassVar[frozenset[str]] = frozenset()

  def rows(self, tokens: Documents, length: int, seed: int) -> Rows:
    """The endless rows of training: documents in an order of their own for each epoch.

    Row i depends on (tokens, length, seed, i) only; every token of the split, and the end of every
    document, is the target once in an epoch. A pair that is longer than a row is left out, and a
    warning counts them.

    Raises:
      ValueError: if the split is shorter than one row, or for a length below 1 or a seed below 0.
    """
    if not 0 <= seed < 2**64:
      raise ValueError(f'seed={seed} is not within 0 and 2**64; give a small positive integer')
    self.check(tokens, length)
    return self.pack(tokens, length, seed)

  def evaluation_rows(self, tokens: Documents, length: int) -> Rows:
    """One pass in the order of the split; the end of what is not full is padding.

    Raises:
      ValueError: for a length below 1, or documents without end.
    """
    check_length(length)
    if tokens.documents == INFINITE:
      raise ValueError(f'{tokens.name} has no end; evaluate the validation or the test split')
    return self.pack(tokens, length, None)

  def check(self, tokens: Documents, length: int) -> None:
    """Refuses what cannot be trained on."""
    check_length(length)
    if tokens.documents == INFINITE and not self.supports_infinite:
      raise ValueError(
        f"{tokens.name} has no end, and {self} plans all of an epoch; packing='padded' would do"
      )
    if tokens.targets < length:
      raise ValueError(
        f'{tokens.name} is too short: {tokens.targets} tokens do not fill one row of '
        f'length={length}; shorten the length or give more text'
      )

  @abc.abstractmethod
  def pack(self, tokens: Documents, length: int, seed: int | None) -> Rows:
    """The rows of training, or for no seed those of evaluation."""


def check_length(length: int) -> None:
  """Refuses what is no length."""
  if length < 1:
    raise ValueError(f'length={length} is no row; give at least 1')


def bits(seed: int, number: int, size: int, purpose: int = 0) -> np.ndarray:
  """Random bits, uint64 [size], of the seed and a number; numpy promises never to change them."""
  key, counter = np.array([seed, number], np.uint64), np.array([0, 0, 0, purpose], np.uint64)
  return np.random.Philox(key=key, counter=counter).random_raw(size)


def permutation(seed: int, epoch: int, size: int, purpose: int = 0) -> np.ndarray:
  """A random order, int64 [size]."""
  return np.argsort(bits(seed, epoch, size, purpose), kind='stable')


def padding(length: int, fields: Sequence[str] = FIELDS) -> Row:
  """A row without any targets."""
  return {field: np.zeros(length, np.int32) for field in fields}


def within(documents: token_arrays.Tokens | token_arrays.Pairs, length: int) -> np.ndarray:
  """The numbers of the documents of which no side is longer than `length`; a warning tells of the others.

  Raises:
    ValueError: if there is none.
  """
  longest = documents.sizes.max(1, initial=0)
  kind = 'pair' if isinstance(documents, token_arrays.Pairs) else 'text'
  found = np.flatnonzero(longest <= length)
  if not len(found):
    raise ValueError(f'{documents.name} has no {kind} within length={length} tokens; give a greater length')
  if len(found) < len(longest):
    _log.warning(
      '%s: %d of %d %ss are longer than %d tokens, the longest of %d, and are left out',
      documents.name,
      len(longest) - len(found),
      len(longest),
      kind,
      length,
      longest.max(),
    )
  return found


def put(
  row: Row, documents: Documents, number: int, segment: int, at: Sequence[int] = (0, 0)
) -> tuple[int, ...]:
  """Writes a document, its sides being a text or a source and a target, into a row, from a place of each side
  on; the places behind it.
  """
  *source, text = sides = documents.sides(number)
  for side, first in zip(source, at):
    here = slice(first, first + len(side))
    row['source'][here], row['source_positions'][here], row['source_segments'][here] = (
      side,
      np.arange(len(side)),
      segment,
    )
  here = slice(at[len(source)], at[len(source)] + len(text))
  row['targets'][here], row['positions'][here], row['segments'][here] = text, np.arange(len(text)), segment
  row['inputs'][here] = np.append(documents.bos_id, text[:-1])
  return tuple(first + len(side) for first, side in zip(at, sides))
