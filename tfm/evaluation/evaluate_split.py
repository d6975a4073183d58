"""Evaluation of a model on a split: the sums of its objective over one pass."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import jax
import numpy as np

from tfm.parallel import processes
from tfm.shapes import Array, Int, PyTree


class ByteCounter:
  """Counts the UTF-8 bytes of the targets of one pass.

  Args:
    token_bytes: [V], the number of bytes of each token; None if unknown or if no token is a target.
    part: (index, count) of this process's part of each batch, from `device_prefetch.process_rows`.
  """

  def __init__(self, token_bytes: Int[np.ndarray, 'V'] | None, part: tuple[int, int] = (0, 1)):
    self.token_bytes, self.part, self.size = token_bytes, part, 0

  def count(self, batches: Iterable[Mapping[str, np.ndarray]]) -> Iterator[Mapping[str, np.ndarray]]:
    """Yields the batches, and adds up the bytes of their targets."""
    for batch in batches:
      has_targets = 'targets' in batch and batch['targets'].shape == batch['segments'].shape
      if self.token_bytes is not None and has_targets:
        self.size += int(self.token_bytes[batch['targets'][batch['segments'] > 0]].sum())
      yield batch

  def total(self) -> int:
    """The bytes of the rows of all processes."""
    if self.part == (0, 1):
      return self.size
    records = processes.gather_bytes(self.part[0].to_bytes(8) + self.size.to_bytes(8))
    return sum({record[:8]: int.from_bytes(record[8:]) for record in records}.values())


def measure(
  params: PyTree,
  step: Callable[[PyTree, Mapping[str, Array]], Mapping[str, Array]],
  batches: Iterable[Mapping[str, np.ndarray]],
  sharding: jax.sharding.Sharding,
  byte_counter: ByteCounter,
  summary: Callable[[Mapping[str, np.ndarray], int], dict[str, float]],
) -> dict[str, float]:
  """The metrics of one pass over `batches`; each row counts once.

  Args:
    step: the compiled evaluation step: sums over a batch, by name.
    sharding: of a batch.
    byte_counter: counts the bytes of the targets.
    summary: of an `Objective`: (sums over the split, bytes of all targets) → metrics.
  """
  total = sum_batches(params, step, byte_counter.count(batches), sharding)
  return {name: float(value) for name, value in summary(total, byte_counter.total()).items()}


def sum_batches(
  params: PyTree,
  step: Callable[[PyTree, Mapping[str, Array]], Mapping[str, Array]],
  batches: Iterable[Mapping[str, np.ndarray]],
  sharding: jax.sharding.Sharding,
) -> dict[str, np.ndarray]:
  """The sums of `step` over all batches in float64, by name; arguments as in `measure`."""
  total = {}
  for batch in batches:
    placed = {name: jax.make_array_from_process_local_data(sharding, x) for name, x in batch.items()}
    for name, x in jax.device_get(step(params, placed)).items():
      total[name] = total.get(name, 0) + x.astype(np.float64)
  return total
