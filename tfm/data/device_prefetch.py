"""Transfers batches to the devices, a few batches ahead of the step that uses them."""

import collections
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import grain
import jax

from tfm.data import pipeline
from tfm.parallel import processes


@dataclasses.dataclass(frozen=True, eq=False)
class DeviceBatch:
  """A batch on the devices, with its origin.

  Attributes:
    batch: arrays [B, …] on the devices, by name.
    state: the iterator's state after this batch; saved with the step that used the batch, so that a resume
      continues with the next one.
    host: this process's rows.
    first_row: the index of the first of them in the batch.
    whole: whether they are all rows of the batch.
  """

  batch: dict[str, jax.Array]
  state: dict[str, Any]
  host: pipeline.Batch
  first_row: int
  whole: bool = True

  @functools.cached_property
  def hash(self) -> str:
    """`pipeline.batch_hash` of this process's rows; computed on first access."""
    return pipeline.batch_hash(self.host, self.first_row)

  @functools.cached_property
  def hashes(self) -> tuple[str, ...]:
    """The hash of the whole batch, for each run that reads it; if it is distributed, all processes must call
    this.
    """
    if self.whole:
      return (self.hash,)
    parts = {
      record[:8]: record[8:].hex()
      for record in processes.gather_bytes(self.first_row.to_bytes(8) + bytes.fromhex(self.hash))
    }
    return (pipeline.add_hashes(parts.values()),)


def prefetch(
  iterator: grain.DatasetIterator, sharding: jax.sharding.Sharding, batch_size: int, size: int = 2
) -> Iterator[DeviceBatch]:
  """Yields the iterator's batches on the devices, while the next `size` batches are being transferred.

  Args:
    iterator: from `pipeline`, with the index and count from `process_rows`; closed at the end.
    sharding: the sharding of an array [B, …].
    batch_size: the global B.
    size: the number of batches to transfer ahead.

  Raises:
    ValueError: if the sharding assigns other rows to this process than the iterator reads.
  """
  if size < 1:
    raise ValueError(f'size={size} must be at least 1 batch to transfer ahead')
  index, count = process_rows(sharding, batch_size)

  def transfer(host: pipeline.Batch) -> DeviceBatch:
    rows = len(next(iter(host.values())))
    # A batch of shorter rows has more of them, by the same factor.
    if rows % (batch_size // count):
      raise ValueError(
        f'the iterator reads {rows} rows, but each of process_count={count} parts of batch_size={batch_size} '
        f'has {batch_size // count}; build the iterator with these numbers'
      )
    batch = {
      name: jax.make_array_from_process_local_data(sharding, value, (rows * count, *value.shape[1:]))
      for name, value in host.items()
    }
    return DeviceBatch(batch, iterator.get_state(), host, index * rows, whole=count == 1)

  def fetch() -> Iterator[DeviceBatch]:
    waiting = collections.deque()
    try:
      for host in iterator:
        waiting.append(transfer(host))
        if len(waiting) > size:
          yield waiting.popleft()
      while waiting:
        yield waiting.popleft()
    finally:
      iterator.close()

  return fetch()


def process_rows(sharding: jax.sharding.Sharding, batch_size: int) -> tuple[int, int]:
  """Returns (process_index, process_count) of the rows that a sharding of [B, T] assigns to this process.

  If several processes hold the same rows (tensor parallelism over hosts), the count is the number of
  different parts, and those processes read the same part.

  Raises:
    ValueError: if the process's rows are not one of several equal parts of the batch.
  """
  # A number of columns equal to the number of devices is divisible by any sharding.
  places = sharding.addressable_devices_indices_map((batch_size, sharding.num_devices)).values()
  spans = {place[0].indices(batch_size)[:2] for place in places}
  first, stop = min(a for a, _ in spans), max(b for _, b in spans)
  width = stop - first
  if sum(b - a for a, b in spans) != width or batch_size % width or first % width:
    raise ValueError(
      f'{sharding} assigns the rows {sorted(spans)} of batch_size={batch_size} to one '
      'process, which are not one equal part; order the devices of the mesh by process'
    )
  return first // width, batch_size // width
