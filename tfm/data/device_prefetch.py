"""Transfers batches to the devices, a few batches ahead of the step that uses them."""

import collections
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import grain
import jax

from tfm.data import pipeline
from tfm.data.row_share import RowShare, process_share
from tfm.parallel import processes


@dataclasses.dataclass(frozen=True, eq=False)
class DeviceBatch:
  """A batch on the devices, with its origin.

  Attributes:
    batch: arrays [B, …] on the devices, by name.
    state: the iterator's state after this batch; saved with the step that used the batch, so that a resume
      continues with the next one.
    host: this process's rows.
    share: which rows of the batch these are.
  """

  batch: dict[str, jax.Array]
  state: dict[str, Any]
  host: pipeline.Batch
  share: RowShare

  @functools.cached_property
  def hash(self) -> str:
    """`pipeline.batch_hash` of the rows that this process counts; computed on first access."""
    return pipeline.batch_hash(self.host, self.share)

  @functools.cached_property
  def hashes(self) -> tuple[str, ...]:
    """The hash of the whole batch, for each run that reads it; if it is distributed, all processes must call
    this.
    """
    if self.share.is_complete:
      return (self.hash,)
    parts = [record.hex() for record in processes.gather_bytes(bytes.fromhex(self.hash))]
    return (pipeline.add_hashes(parts),)


def prefetch(
  iterator: grain.DatasetIterator, sharding: jax.sharding.Sharding, batch_size: int, size: int = 2
) -> Iterator[DeviceBatch]:
  """Yields the iterator's batches on the devices, while the next `size` batches are being transferred.

  Args:
    iterator: from `pipeline`, with the `row_share.process_share` of `sharding`; closed at the end.
    sharding: the sharding of an array [B, …].
    batch_size: the global B.
    size: the number of batches to transfer ahead.

  Raises:
    ValueError: if the sharding puts another number of rows on this process than the iterator reads.
  """
  if size < 1:
    raise ValueError(f'size={size} must be at least 1 batch to transfer ahead')
  share = process_share(sharding, batch_size)

  def transfer(host: pipeline.Batch) -> DeviceBatch:
    return DeviceBatch(share.place(host, sharding), iterator.get_state(), host, share.of_host(host))

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
