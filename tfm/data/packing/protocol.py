"""The packing slot: a split's tokens as rows of one length, each a pure function of its index."""

import abc
import dataclasses
import functools
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import ClassVar

import numpy as np

from tfm.data import images
from tfm.data import tokens as token_arrays
from tfm.data.documents import INFINITE
from tfm.data.interleaving import Interleaving
from tfm.data.mixture import MixedDocuments
from tfm.shapes import Int


FIELDS = 'inputs', 'targets', 'positions', 'segments'
PAIR_FIELDS = *FIELDS, 'source', 'source_positions', 'source_segments'
ORDER = 0  # a purpose of random bits; each packing and objective has its own

Row = dict[str, np.ndarray]
# What is packed: the documents of a split.
Documents = (
  token_arrays.Tokens
  | token_arrays.InfiniteDocuments
  | token_arrays.Pairs
  | token_arrays.Preferences
  | token_arrays.LabelledTexts
  | token_arrays.AnsweredTexts
  | images.Images
)

_log = logging.getLogger(__name__)


class Rows(Sequence):
  """Random-access rows: `rows[i]` is a dict of int32 [T], and of the packing's extra fields.

    inputs     tokens
    targets    the next tokens
    positions  of the inputs
    segments   1, 2, … by document; 0 is padding, whose targets do not count

  and, for pairs, whose target is in the four fields above:

    source     tokens, including the end of the text
    source_positions, source_segments     those of the source; a source has the segment id of its target

  Attributes:
    length: the greatest T.
    tokens_per_epoch: the number of targets in one pass over the split.
  """

  length: int
  tokens_per_epoch: int

  def count_batches(self, batch_size: int) -> int:
    """Returns the number of batches of `batch_size` rows."""
    return -(-len(self) // batch_size)

  def batch_rows(self, index: int, batch_size: int) -> Sequence[int | None]:
    """Returns the indices of the rows of a batch, which all have one shape; None is padding, and never the
    first.
    """
    first = index * batch_size
    return [i if i < len(self) else None for i in range(first, first + batch_size)]

  def padding_like(self, example: Row) -> Row:
    """Returns a row that does not count, with the shapes of an example; it fills up a batch."""
    return {field: np.zeros_like(x) for field, x in example.items()}


class DocumentRows(Rows):
  """Row i is made from one document: in evaluation the i-th; in training the i-th in the random order of each
  epoch; of infinitely many documents, the i-th after an offset that depends on the seed.
  """

  def __init__(self, documents: Documents, length: int, seed: int | None, numbers: np.ndarray | None = None):
    """
    Args:
      numbers: the indices of the documents to read; None for all.
    """
    self.length, self.tokens_per_epoch = length, documents.targets
    self._documents, self._seed, self._numbers = documents, seed, numbers
    self._count = documents.documents if numbers is None else len(numbers)
    self._order = functools.lru_cache(maxsize=2)(self._order)

  @abc.abstractmethod
  def _row(self, number: int, index: int) -> Row:
    """Returns the row of a document; `index` is its place in the stream of rows."""

  def __len__(self):
    return self._count if self._seed is None else INFINITE

  def __getitem__(self, index: int) -> Row:
    if not 0 <= index < len(self):
      raise IndexError(index)
    if self._seed is None:
      place = index
    elif self._count == INFINITE:
      place = int(random_bits(self._seed, 0, 1, ORDER)[0]) // 4 + index
    else:
      epoch, place = divmod(index, self._count)
      place = int(self._order(epoch)[place])
    return self._row(place if self._numbers is None else int(self._numbers[place]), index)

  def _order(self, epoch: int) -> np.ndarray:
    return permutation(self._seed, epoch, self._count, ORDER)


class MappedRows(Rows):
  """Rows that a function `transform(row, index)` computes from other rows."""

  def __init__(self, rows: Rows, transform: Callable[[Row, int], Row]):
    self._rows, self._transform = rows, transform
    self.length, self.tokens_per_epoch = rows.length, rows.tokens_per_epoch

  def __len__(self):
    return len(self._rows)

  def __getitem__(self, index: int) -> Row:
    return self._transform(self._rows[index], index)

  def count_batches(self, batch_size):
    return self._rows.count_batches(batch_size)

  def batch_rows(self, index, batch_size):
    return self._rows.batch_rows(index, batch_size)

  def padding_like(self, example):
    return self._rows.padding_like(example)


class MixedRows(Rows):
  """The infinite rows of the parts of a mixture: row i is the next one of the part whose turn it is."""

  def __init__(self, parts: Mapping[str, Rows], weights: Mapping[str, Fraction]):
    self._parts = [*parts.values()]
    self._turns = Interleaving(tuple(weights[name] for name in parts))
    self.length = self._parts[0].length
    self.tokens_per_epoch = sum(rows.tokens_per_epoch for rows in self._parts)

  def __len__(self):
    return INFINITE

  def __getitem__(self, index: int) -> Row:
    if not 0 <= index < len(self):
      raise IndexError(index)
    part, number = self._turns[index]
    return self._parts[part][number]


@dataclasses.dataclass(frozen=True)
class Packing(abc.ABC):
  """How documents become rows; the fields of a subclass are the literals of its spec.

  Attributes:
    layout: what holds for the positions of its rows: 'contiguous', one document per row from position 0 on,
      or 'packed', two tokens of a document differ in position as much as in their place in the row.
    document_kinds: the fields of the documents that it packs: ('text',), ('source', 'target'), ….
    supports_infinite: whether it packs infinitely many documents.
    has_fixed_batch_shape: whether all its batches have one shape.
    extra_fields: the fields of its rows in addition to those that all rows have, for an objective that
      requires them.
  """

  layout: ClassVar[str]
  document_kinds: ClassVar[tuple[tuple[str, ...], ...]] = (('text',),)
  supports_infinite: ClassVar[bool] = False
  has_fixed_batch_shape: ClassVar[bool] = True
  extra_fields: ClassVar[frozenset[str]] = frozenset()

  def rows(self, tokens: Documents | MixedDocuments, length: int, seed: int) -> Rows:
    """Returns the infinite rows of training: the documents in a new random order for each epoch.

    Row i depends on (tokens, length, seed, i) only; every token of the split, and the end of every document,
    is a target once per epoch. A pair that is longer than a row is skipped, and a warning counts these.

    Each part of a mixture has its own rows, epochs and random orders, which depend on its name and not on the
    other parts; `interleaving` says which row of a part is next.

    Raises:
      ValueError: if the split is shorter than one row, or for a length below 1 or a seed below 0.
    """
    if not 0 <= seed < 2**64:
      raise ValueError(f'seed={seed} must lie in [0, 2**64); use a small positive integer')
    if isinstance(tokens, MixedDocuments):
      parts = {name: self.rows(part, length, _part_seed(seed, name)) for name, part in tokens.parts.items()}
      return MixedRows(parts, tokens.weights)
    self.validate(tokens, length)
    return self.pack(tokens, length, seed)

  def evaluation_rows(self, tokens: Documents, length: int) -> Rows:
    """Returns the rows of one pass in the order of the split; incomplete rows are filled up with padding.

    Raises:
      ValueError: for a length below 1, or infinitely many documents.
    """
    validate_length(length)
    if tokens.documents == INFINITE:
      raise ValueError(f'{tokens.name} is infinite; evaluate the validation or the test split')
    return self.pack(tokens, length, None)

  def validate(self, tokens: Documents, length: int) -> None:
    """Raises ValueError for documents that cannot be packed for training."""
    validate_length(length)
    if tokens.documents == INFINITE and not self.supports_infinite:
      raise ValueError(f"{tokens.name} is infinite, and {self} plans a whole epoch; use packing='padded'")
    if tokens.targets < length:
      raise ValueError(
        f'{tokens.name} is too short: {tokens.targets} tokens do not fill one row of '
        f'length={length}; use a smaller length or more text'
      )

  @abc.abstractmethod
  def pack(self, tokens: Documents, length: int, seed: int | None) -> Rows:
    """Returns the rows of training, or, if the seed is None, of evaluation."""


def validate_length(length: int) -> None:
  """Raises ValueError for a length below 1."""
  if length < 1:
    raise ValueError(f'length={length} must be at least 1')


def random_bits(seed: int, number: int, size: int, purpose: int) -> np.ndarray:
  """Returns random bits, uint64 [size], independent for each seed, number and purpose; NumPy guarantees
  that they never change.
  """
  key, counter = np.array([seed, number], np.uint64), np.array([0, 0, 0, purpose], np.uint64)
  return np.random.Philox(key=key, counter=counter).random_raw(size)


def permutation(seed: int, epoch: int, size: int, purpose: int) -> np.ndarray:
  """Returns a random permutation, int64 [size]."""
  return np.argsort(random_bits(seed, epoch, size, purpose), kind='stable')


def _part_seed(seed: int, name: str) -> int:
  """Returns the seed of a part of a mixture."""
  number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
  return int(random_bits(seed, number, 1, ORDER)[0])


def padding_row(length: int, fields: Sequence[str] = FIELDS) -> Row:
  """Returns a row without any targets."""
  return {field: np.zeros(length, np.int32) for field in fields}


def text_row(bos_id: int, ids: Int[np.ndarray, 'N'], length: int) -> Row:
  """Returns the row, without targets, of a text that ends in its end token: beginning, text, end, padding; of
  one that is too long for it, the last tokens before the end are left out.
  """
  tokens = np.array([bos_id, *ids[:-1][: length - 2], ids[-1]], np.int32)
  row = padding_row(length, ('inputs', 'positions', 'segments'))
  row['inputs'][: len(tokens)] = tokens
  row['positions'][: len(tokens)], row['segments'][: len(tokens)] = np.arange(len(tokens)), 1
  return row


def fitting_documents(documents: Documents, length: int) -> np.ndarray:
  """Returns the indices of the documents whose sequences are not longer than `length`; a warning counts the
  others.

  Raises:
    ValueError: if there are none.
  """
  lengths = documents.sequence_lengths
  longest, kind = lengths.max(1, initial=0), 'pair' if lengths.shape[1] > 1 else 'text'
  fitting = np.flatnonzero(longest <= length)
  if not len(fitting):
    raise ValueError(f'{documents.name} has no {kind} within length={length} tokens; use a greater length')
  if len(fitting) < len(longest):
    _log.warning(
      '%s: %d of %d %ss are longer than %d tokens and are skipped; the longest has %d',
      documents.name,
      len(longest) - len(fitting),
      len(longest),
      kind,
      length,
      longest.max(),
    )
  return fitting


def write_document(
  row: Row, documents: Documents, number: int, segment: int, starts: Sequence[int] = (0, 0)
) -> tuple[int, ...]:
  """Writes a document, a text or a source and a target, into a row; returns the places after its sequences.

  Args:
    starts: the place in the row where each sequence begins.
  """
  *source, text = sequences = documents.sequences(number)
  for sequence, start in zip(source, starts):
    span = slice(start, start + len(sequence))
    row['source'][span], row['source_segments'][span] = sequence, segment
    row['source_positions'][span] = np.arange(len(sequence))
  span = slice(starts[len(source)], starts[len(source)] + len(text))
  row['targets'][span], row['positions'][span], row['segments'][span] = text, np.arange(len(text)), segment
  row['inputs'][span] = np.append(documents.bos_id, text[:-1])
  return tuple(start + len(sequence) for start, sequence in zip(starts, sequences))
