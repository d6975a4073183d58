"""The mask slot: which query position may see which key position.

A mask is a predicate on positions, never on array indices, so one object serves dense attention, the blocks
of a chunked kernel, permuted keys and one decoding row against a cache. Padding and packing are data, not
masks: they are segment ids, which every kernel ANDs with the mask.
"""

import abc
import dataclasses
from typing import ClassVar

import numpy as np

from tfm.shapes import Array, Bool, Int


# What a caller guarantees about the positions in a row, for planning on the host:
# contiguous  the token at index i has position i, and padding follows the last token (one document per row);
# packed      two tokens of one document are as far apart in position as in index; arbitrary   nothing.
LAYOUTS = ('contiguous', 'packed', 'arbitrary')


class Mask(abc.ABC):
  """A frozen, hashable predicate on positions, closed under `&`, `|` and `~`.

  Subclasses are frozen dataclasses. They use operators only, so that they accept NumPy arrays (on the host,
  for planning) and JAX arrays (in the kernel).

  Attributes:
    examples: specs that the conformance suite tries; a file whose bare name is a spec needs none.
    relative: whether the result depends on q - k alone.
    required_fields: what the mask requires of each key besides its position, such as 'prefix'; see
      `bind_prefix`.
  """

  examples: ClassVar[tuple[str, ...]] = ()
  relative: ClassVar[bool] = False
  required_fields: ClassVar[frozenset[str]] = frozenset()

  @abc.abstractmethod
  def __call__(self, q: Int[Array, '*#N'], k: Int[Array, '*#N']) -> Bool[Array, '*N']:
    """True where the query at position `q` may see the key at position `k`; both broadcast."""

  def bind_prefix(self, prefix: Int[Array, '*#N'] | int | None) -> 'Mask':
    """The mask with its required data: the prefix length of each key's document.

    Raises:
      ValueError: if the mask requires a prefix and it is None.
    """
    return self

  def bounds(
    self, q: Int[np.ndarray, '*#N'], k: Int[np.ndarray, '*#N'], layout: str
  ) -> tuple[Bool[np.ndarray, '*N'], Bool[np.ndarray, '*N']]:
    """(certainly visible, possibly visible) for the pairs at *indices* q and k in rows of that layout.

    Kernels use it on the host to skip blocks. It concerns pairs within one document only.
    """
    if layout == 'contiguous' or layout == 'packed' and self.relative:
      visible = np.broadcast_to(self(q, k), np.broadcast_shapes(q.shape, k.shape))
      return visible, visible
    return _constant(q, k, False), _constant(q, k, True)

  def or_prefix(self) -> 'Mask':
    """The mask that also shows the keys of the prefix to every query of the document."""
    return self | _Prefix()

  def __and__(self, other: 'Mask') -> 'Mask':
    return And(self, other) if isinstance(other, Mask) else NotImplemented

  def __or__(self, other: 'Mask') -> 'Mask':
    return Or(self, other) if isinstance(other, Mask) else NotImplemented

  def __invert__(self) -> 'Mask':
    return Not(self)


class _Pair(Mask):
  """A combination of the masks `left` and `right`."""

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
  """Visible under both masks."""

  left: Mask
  right: Mask

  def __call__(self, q, k):
    return self.left(q, k) & self.right(q, k)

  def bounds(self, q, k, layout):
    left_certain, left_possible = self.left.bounds(q, k, layout)
    right_certain, right_possible = self.right.bounds(q, k, layout)
    return left_certain & right_certain, left_possible & right_possible


@dataclasses.dataclass(frozen=True)
class Or(_Pair):
  """Visible under either mask."""

  left: Mask
  right: Mask

  def __call__(self, q, k):
    return self.left(q, k) | self.right(q, k)

  def bounds(self, q, k, layout):
    left_certain, left_possible = self.left.bounds(q, k, layout)
    right_certain, right_possible = self.right.bounds(q, k, layout)
    return left_certain | right_certain, left_possible | right_possible


@dataclasses.dataclass(frozen=True)
class Not(Mask):
  """Visible if hidden under `mask`."""

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
    raise ValueError(
      'a mask with `or_prefix` was evaluated without prefix lengths; call `bind_prefix(prefix)` first'
    )

  def bind_prefix(self, prefix):
    if prefix is None:
      raise ValueError('a mask with `or_prefix` requires prefix lengths, and the context has none')
    return _BoundPrefix(prefix)

  def bounds(self, q, k, layout):
    return _constant(q, k, False), _constant(q, k, True)


@dataclasses.dataclass(frozen=True, eq=False)
class _BoundPrefix(Mask):
  """k < prefix, with the lengths in a shape that broadcasts with q and k."""

  prefix: Int[Array, '*#N'] | int

  def __call__(self, q, k):
    return k < self.prefix


def _constant(q, k, value):
  return np.full(np.broadcast_shapes(q.shape, k.shape), value)


def table(mask: Mask, queries: int, keys: int | None = None, start: int = 0) -> Bool[np.ndarray, 'T S']:
  """The mask on the host: queries at positions start … queries - 1 by keys at positions 0 … keys - 1.

  `keys` defaults to `queries`. A mask that requires a prefix gets one of half the keys.
  """
  keys = queries if keys is None else keys
  q, k = np.arange(start, queries)[:, None], np.arange(keys)[None, :]
  return np.broadcast_to(mask.bind_prefix(keys // 2)(q, k), (len(q), keys))


def _sample_positions(length: int) -> Int[np.ndarray, 'N']:
  """All positions up to 4096; of more, both ends and an even grid."""
  near, grid = np.arange(min(length, 1024)), np.linspace(0, length - 1, min(length, 4096)).astype(int)
  return np.unique(np.concatenate([near, length - 1 - near, grid]))


def is_causal(mask: Mask, length: int) -> bool:
  """Whether no position below `length` sees a later one, with an empty prefix.

  Checks all pairs of up to 4096 positions; of more, pairs from both ends and an even grid.
  """
  positions = _sample_positions(length)
  q, k = positions[:, None], positions[None, :]
  return not np.triu(np.broadcast_to(mask.bind_prefix(0)(q, k), (len(positions),) * 2), 1).any()


def is_empty(mask: Mask, length: int) -> bool:
  """Whether no position below `length` sees any, of the pairs of `is_causal` and prefixes of 0 and 1."""
  positions = _sample_positions(length)
  q, k = positions[:, None], positions[None, :]
  return not any(np.any(mask.bind_prefix(prefix)(q, k)) for prefix in (0, 1))


def density(mask: Mask, queries: int, keys: int | None = None) -> float:
  """The fraction of visible pairs in `table`, counted by distance, or else a few rows at a time."""
  keys = queries if keys is None else keys
  if mask.relative and not mask.required_fields:
    distances = np.arange(1 - keys, queries)
    visible = np.broadcast_to(mask(np.maximum(distances, 0), np.maximum(-distances, 0)), distances.shape)
    pairs = np.minimum(queries, keys + distances) - np.maximum(0, distances)  # of each distance
    return int(pairs[visible].sum()) / (queries * keys)
  rows = max(1, 2**24 // keys)
  return sum(
    int(table(mask, min(start + rows, queries), keys, start).sum()) for start in range(0, queries, rows)
  ) / (queries * keys)
