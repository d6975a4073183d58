"""Batches on the devices, a few ahead of the step that needs them."""

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
  """A batch and what to remember of it.

  Attributes:
    batch: arrays [B, …] on the devices, by name.
    state: of the iterator after this batch; saved with the step that used the batch, a resume
      continues with the next one.
    host: this process's rows.
    first_row: the number of the first of them in the batch.
    whole: whether they are all rows of the batch.
  """

  batch: dict[str, jax.Array]
  state: dict[str, Any]
  host: pipeline.Batch
  first_row: int
  whole: bool = True

  @functools.cached_property
  def hash(self) -> str:
    """`pipeline.batch_hash` of this process's rows; computed when read."""
    return pipeline.batch_hash(self.host, self.first_row)

  @functools.cached_property
  def hashes(self) -> tuple[str, ...]:
    """That of the whole batch, for each run that reads it; where it is not whole here, all processes must
    ask.
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
  """Yields the iterator's batches on the devices, with `size` more of them on the way.

  Args:
    iterator: of `pipeline`, with the index and count of `process_rows`; closed at the end.
    sharding: of an array [B, …].
    batch_size: the global B.
    size: batches that are sent ahead.

  Raises:
    ValueError: if the sharding gives this process other rows than the iterator reads.
  """
  if size < 1:
    raise ValueError(f'size={size} sends no batch ahead; give at least 1')
  index, count = process_rows(sharding, batch_size)

  def send(host: pipeline.Batch) -> DeviceBatch:
    rows = len(next(iter(host.values())))
    # A batch of shorter rows has as many times more of them.
    if rows % (batch_size // count):
      raise ValueError(
        f'the iterator reads {rows} rows, but batch_size={batch_size} over '
        f'process_count={count} has {batch_size // count}; build it with both'
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
        waiting.append(send(host))
        if len(waiting) > size:
          yield waiting.popleft()
      while waiting:
        yield waiting.popleft()
    finally:
      iterator.close()

  return fetch()


def process_rows(sharding: jax.sharding.Sharding, batch_size: int) -> tuple[int, int]:
  """(process_index, process_count) of the rows that a sharding of [B, T] puts on this process.

  Where several processes hold the same rows (tensor parallelism over hosts), the count is that of
  different parts, and those processes read the same one.

  Raises:
    ValueError: if the process's rows are not one of the equal parts of the batch.
  """
  # As many columns as devices divide however the sharding splits them.
  places = sharding.addressable_devices_indices_map((batch_size, sharding.num_devices)).values()
  spans = {place[0].indices(batch_size)[:2] for place in places}
  first, stop = min(a for a, _ in spans), max(b for _, b in spans)
  width = stop - first
  if sum(b - a for a, b in spans) != width or batch_size % width or first % width:
    raise ValueError(
      f'{sharding} puts the rows {sorted(spans)} of batch_size={batch_size} on one '
      'process, which is no equal part; order the devices of the mesh by process'
    )
  return first // width, batch_size // width
