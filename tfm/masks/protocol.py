"""The mask slot: which query position may see which key position.

A mask is asked about positions, never about array indices, so one object serves dense attention,
the blocks of a chunked kernel, permuted keys and one decoding row against a cache. Padding and
packing are data, not masks: they travel as segment ids and are always ANDed by the kernel.
"""

import abc
import dataclasses
from typing import ClassVar

import numpy as np

from tfm.shapes import Array, Bool, Int


# What a caller can promise about rows of tokens, for planning on the host:
#   contiguous  the token at index i stands at position i, and padding behind the last (one document a row);
#   packed      two tokens of one document are as far apart in position as in index;
#   arbitrary   nothing.
LAYOUTS = ('contiguous', 'packed', 'arbitrary')


class Mask(abc.ABC):
  """A frozen, hashable predicate on positions, closed under `&`, `|` and `~`.

  Subclasses are frozen dataclasses. They use operators only, so that they take NumPy arrays
  (on the host, to plan) and JAX arrays (in the kernel) alike.

  Attributes:
    examples: specs that the conformance suite tries; a file whose bare name is a spec needs none.
    relative: whether the answer depends on q - k alone.
    reads: what the mask wants to know of each key besides its position, such as 'prefix'; see `given`.
  """

  examples: ClassVar[tuple[str, ...]] = ()
  relative: ClassVar[bool] = False
  required_fields: ClassVar[frozenset[str]] = frozenset()

  @abc.abstractmethod
  def __call__(self, q: Int[Array, '*#N'], k: Int[Array, '*#N']) -> Bool[Array, '*N']:
    """True where the query at position `q` may see the key at position `k`; both broadcast."""

  def bind_prefix(self, prefix: Int[Array, '*#N'] | int | None) -> 'Mask':
    """The mask with the data in place that it `reads`: the prefix length of each key's document.

    Raises:
      ValueError: if the mask reads what is None.
    """
    return self

  def bounds(
    self, q: Int[np.ndarray, '*#N'], k: Int[np.ndarray, '*#N'], layout: str
  ) -> tuple[Bool[np.ndarray, '*N'], Bool[np.ndarray, '*N']]:
    """(certainly seen, possibly seen) for the pairs at *indices* q and k of rows of that layout.

    What a kernel needs to leave out blocks on the host; of pairs within one document only.
    """
    if layout == 'contiguous' or layout == 'packed' and self.relative:
      seen = np.broadcast_to(self(q, k), np.broadcast_shapes(q.shape, k.shape))
      return seen, seen
    return _constant(q, k, False), _constant(q, k, True)

  def or_prefix(self) -> 'Mask':
    """Also keys of the prefix, from wherever they are asked; it `reads` what tells them."""
    return self | _Prefix()

  def __and__(self, other: 'Mask') -> 'Mask':
    return And(self, other) if isinstance(other, Mask) else NotImplemented

  def __or__(self, other: 'Mask') -> 'Mask':
    return Or(self, other) if isinstance(other, Mask) else NotImplemented

  def __invert__(self) -> 'Mask':
    return Not(self)


class _Pair(Mask):
  """Two masks; the fields `left` and `right`."""

  @property
  def relative(self):
    return self.left.relative and self.right.relative

  @property
  def required_fields(self):
    return self.left.required_fields | self.right.required_fields

  def bind_prefix(self, prefix):
    return dataclasses.replace(self, left=self.left.bind_prefix(prefix), right=self.right.bind_prefix(prefix))


@dataclasses.dataclass(frozen=True)
class And(_Pair):
  """Seen by both."""

  left: Mask
  right: Mask

  def __call__(self, q, k):
    return self.left(q, k) & self.right(q, k)

  def bounds(self, q, k, layout):
    (certain, possible), (also, perhaps) = self.left.bounds(q, k, layout), self.right.bounds(q, k, layout)
    return certain & also, possible & perhaps


@dataclasses.dataclass(frozen=True)
class Or(_Pair):
  """Seen by either."""

  left: Mask
  right: Mask

  def __call__(self, q, k):
    return self.left(q, k) | self.right(q, k)

  def bounds(self, q, k, layout):
    (certain, possible), (also, perhaps) = self.left.bounds(q, k, layout), self.right.bounds(q, k, layout)
    return certain | also, possible | perhaps


@dataclasses.dataclass(frozen=True)
class Not(Mask):
  """Seen by the other's complement."""

  mask: Mask

  @property
  def relative(self):
    return self.mask.relative

  @property
  def required_fields(self):
    return self.mask.required_fields

  def __call__(self, q, k):
    return ~self.mask(q, k)

  def bind_prefix(self, prefix):
    return Not(self.mask.bind_prefix(prefix))

  def bounds(self, q, k, layout):
    certain, possible = self.mask.bounds(q, k, layout)
    return ~possible, ~certain


@dataclasses.dataclass(frozen=True)
class _Prefix(Mask):
  """k < prefix."""

  required_fields = frozenset({'prefix'})

  def __call__(self, q, k):
    raise ValueError('keys of the prefix are asked for without it; `given(prefix)` puts it in place')

  def bind_prefix(self, prefix):
    if prefix is None:
      raise ValueError('keys of the prefix are asked for, and the context has none')
    return _GivenPrefix(prefix)

  def bounds(self, q, k, layout):
    return _constant(q, k, False), _constant(q, k, True)


@dataclasses.dataclass(frozen=True, eq=False)
class _GivenPrefix(Mask):
  """The same with the data in place, shaped to meet q and k."""

  prefix: Int[Array, '*#N'] | int

  def __call__(self, q, k):
    return k < self.prefix


def _constant(q, k, value):
  return np.full(np.broadcast_shapes(q.shape, k.shape), value)


def check_whole(mask: Mask, **least: int) -> None:
  """Raises ValueError unless each named field is None or a whole number, at least so great."""
  for name, number in least.items():
    value = getattr(mask, name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < number):
      raise ValueError(f'{name}={value!r} must be a whole number, {number} or more')


def table(mask: Mask, queries: int, keys: int | None = None, start: int = 0) -> Bool[np.ndarray, 'T S']:
  """The mask on the host: queries at positions start … queries-1, by keys at 0 … keys-1 (as many unless given).

  A mask that reads a document's prefix is shown for one of half the keys.
  """
  keys = queries if keys is None else keys
  q, k = np.arange(start, queries)[:, None], np.arange(keys)[None, :]
  return np.broadcast_to(mask.bind_prefix(keys // 2)(q, k), (len(q), keys))


def is_causal(mask: Mask, length: int) -> bool:
  """Whether no position below `length` sees a later one, where no document has a prefix.

  Up to 4096 positions all pairs are looked at; beyond, those of both ends and of an even grid.
  """
  near, grid = np.arange(min(length, 1024)), np.linspace(0, length - 1, min(length, 4096)).astype(int)
  positions = np.unique(np.concatenate([near, length - 1 - near, grid]))
  q, k = positions[:, None], positions[None, :]
  return not np.triu(np.broadcast_to(mask.bind_prefix(0)(q, k), (len(positions),) * 2), 1).any()


def density(mask: Mask, queries: int, keys: int | None = None) -> float:
  """The share of the pairs of `table` that the mask lets through, counted some rows at a time."""
  keys = queries if keys is None else keys
  rows = max(1, 2**24 // keys)
  return sum(
    int(table(mask, min(start + rows, queries), keys, start).sum()) for start in range(0, queries, rows)
  ) / (queries * keys)
