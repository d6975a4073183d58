"""Which rows of a batch a process reads: those that its devices hold.

On a TPU pod a host holds a tile of the torus, so its rows may lie in several spans of the batch; hosts that
share rows (tensor parallelism between them) read the same ones.
"""

import collections
import dataclasses
from collections.abc import Callable, Mapping
from operator import attrgetter

import jax
import numpy as np

from tfm.shapes import Array, Bool, Int


@dataclasses.dataclass(frozen=True, eq=False)
class RowShare:
  """The rows of a batch that one process reads.

  A batch of shorter rows has k times as many; each row then stands for k neighboring ones.

  Attributes:
    batch_size: the global B.
    rows: their indices in the batch, ascending.
    counted: which of them this process counts, so that over all processes each row is counted once: in the
      first process that holds it. Where every process holds all rows, each counts all.
    is_complete: whether every process holds all rows.
  """

  batch_size: int
  rows: Int[np.ndarray, 'N']
  counted: Bool[np.ndarray, 'N']
  is_complete: bool

  @classmethod
  def all(cls, batch_size: int) -> 'RowShare':
    """All rows, for a single process."""
    return cls(batch_size, np.arange(batch_size), np.ones(batch_size, bool), True)

  @property
  def spans(self) -> list[tuple[int, int]]:
    """The rows as [first, stop) of each run of neighbors."""
    ends = np.flatnonzero(np.diff(self.rows) > 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(self.rows, ends) if len(part)]

  def scale(self, batch_size: int) -> 'RowShare':
    """The share of a batch of k times as many rows.

    Raises:
      ValueError: if the size is not such a multiple.
    """
    factor, rest = divmod(batch_size, self.batch_size)
    if rest or not factor:
      raise ValueError(f'a batch has {batch_size} rows, not a multiple of batch_size={self.batch_size}')
    if factor == 1:
      return self
    rows = (self.rows[:, None] * factor + np.arange(factor)).reshape(-1)
    return RowShare(batch_size, rows, np.repeat(self.counted, factor), self.is_complete)

  def of_host(self, host: Mapping[str, np.ndarray]) -> 'RowShare':
    """The share of the batch of which `host` holds this process's rows.

    Raises:
      ValueError: if it holds another number of rows.
    """
    count = len(next(iter(host.values())))
    if not count or count % len(self.rows):
      raise ValueError(
        f"the iterator reads {count} rows, and this process's devices hold {len(self.rows)} rows of "
        f'batch_size={self.batch_size}; build the iterator with `row_share.process_share`'
      )
    return self.scale(count // len(self.rows) * self.batch_size)

  def place(self, host: Mapping[str, np.ndarray], sharding: jax.sharding.Sharding) -> dict[str, Array]:
    """Arrays [B, …] on the devices, from this process's rows of them."""
    share, result = self.of_host(host), {}
    for name, x in host.items():
      shape = share.batch_size, *x.shape[1:]
      places = sharding.addressable_devices_indices_map(shape)
      shards = jax.device_put([share.slice(x, place) for place in places.values()], list(places))
      result[name] = jax.make_array_from_single_device_arrays(shape, sharding, shards)
    return result

  def slice(self, x: np.ndarray, place: tuple[slice, ...]) -> np.ndarray:
    """The part of an array [B, …] at `place`, whose rows this process has, from `x`, all the rows it has."""
    first, stop, _ = place[0].indices(self.batch_size)
    start = int(np.searchsorted(self.rows, first))  # the rows of a device are neighbors
    return x[start : start + stop - first][(slice(None), *place[1:])]


def process_share(sharding: jax.sharding.Sharding, batch_size: int) -> RowShare:
  """The rows that a sharding of arrays [B, …] puts on this process's devices."""
  return process_shares(sharding, batch_size)[jax.process_index()]


def process_shares(
  sharding: jax.sharding.Sharding,
  batch_size: int,
  process_of: Callable[[jax.Device], int] = attrgetter('process_index'),
) -> dict[int, RowShare]:
  """The share of each process that has devices of a sharding, by its index.

  Args:
    process_of: device → index of its process.
  """
  # A number of columns equal to the number of devices is divisible by any sharding.
  places = sharding.devices_indices_map((batch_size, sharding.num_devices))
  holds = collections.defaultdict(lambda: np.zeros(batch_size, bool))
  for device, place in places.items():
    holds[process_of(device)][place[0]] = True
  is_complete = all(held.all() for held in holds.values())
  shares, counted = {}, np.zeros(batch_size, bool)
  for process, held in sorted(holds.items()):
    rows = np.flatnonzero(held)
    shares[process] = RowShare(batch_size, rows, is_complete | ~counted[rows], is_complete)
    counted |= held
  return shares
