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


class Mask(abc.ABC):
  """A frozen, hashable predicate on positions, closed under `&`, `|` and `~`.

  Subclasses are frozen dataclasses. They use operators only, so that they take NumPy arrays
  (on the host, to plan) and JAX arrays (in the kernel) alike.

  Attributes:
    examples: specs that the conformance suite tries; a file whose bare name is a spec needs none.
  """

  examples: ClassVar[tuple[str, ...]] = ()

  @abc.abstractmethod
  def __call__(self, q: Int[Array, '*#N'], k: Int[Array, '*#N']) -> Bool[Array, '*N']:
    """True where the query at position `q` may see the key at position `k`; both broadcast."""

  def __and__(self, other: 'Mask') -> 'Mask':
    return And(self, other) if isinstance(other, Mask) else NotImplemented

  def __or__(self, other: 'Mask') -> 'Mask':
    return Or(self, other) if isinstance(other, Mask) else NotImplemented

  def __invert__(self) -> 'Mask':
    return Not(self)


@dataclasses.dataclass(frozen=True)
class And(Mask):
  """Seen by both."""

  left: Mask
  right: Mask

  def __call__(self, q, k):
    return self.left(q, k) & self.right(q, k)


@dataclasses.dataclass(frozen=True)
class Or(Mask):
  """Seen by either."""

  left: Mask
  right: Mask

  def __call__(self, q, k):
    return self.left(q, k) | self.right(q, k)


@dataclasses.dataclass(frozen=True)
class Not(Mask):
  """Seen by the other's complement."""

  mask: Mask

  def __call__(self, q, k):
    return ~self.mask(q, k)


def table(mask: Mask, length: int) -> np.ndarray:
  """The mask over positions 0 … length-1 as a [length, length] table, query by key, on the host."""
  positions = np.arange(length)
  return np.broadcast_to(mask(positions[:, None], positions[None, :]), (length, length))


def is_causal(mask: Mask, length: int) -> bool:
  """Whether no position below `length` sees a later one.

  Up to 4096 positions all pairs are looked at; beyond, those of both ends and of an even grid.
  """
  near, grid = np.arange(min(length, 1024)), np.linspace(0, length - 1, min(length, 4096)).astype(int)
  positions = np.unique(np.concatenate([near, length - 1 - near, grid]))
  shape = (len(positions),) * 2
  return not np.triu(np.broadcast_to(mask(positions[:, None], positions[None, :]), shape), 1).any()


def density(mask: Mask, length: int) -> float:
  """The share of the length × length pairs that the mask lets through."""
  return float(table(mask, length).mean())
