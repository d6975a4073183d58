"""Evaluation of a model on a split: the sums of its objective over one pass."""

from collections.abc import Callable, Iterable, Mapping

import jax
import numpy as np

from tfm.parallel import processes
from tfm.shapes import Array, PyTree


def measure(
  params: PyTree,
  step: Callable[[PyTree, Mapping[str, Array]], Mapping[str, Array]],
  batches: Iterable[Mapping[str, np.ndarray]],
  sharding: jax.sharding.Sharding,
  token_bytes: np.ndarray | None,
  summary: Callable[[Mapping[str, np.ndarray], int], dict[str, float]],
  part: tuple[int, int] = (0, 1),
) -> dict[str, float]:
  """The metrics of one pass over `batches`; each row counts once.

  Args:
    step: the compiled evaluation step: sums over a batch, by name.
    sharding: of a batch.
    token_bytes: [V], the number of UTF-8 bytes of each token; None if unknown or if no token is a target.
    summary: of an `Objective`: (sums over the split, bytes of all targets) → metrics.
    part: (index, count) of this process's part of each batch, from `device.process_rows`.
  """
  size = 0

  def read():
    nonlocal size
    for batch in batches:
      if token_bytes is not None and 'targets' in batch and batch['targets'].shape == batch['segments'].shape:
        size += int(token_bytes[batch['targets'][batch['segments'] > 0]].sum())
      yield batch

  total = sum_batches(params, step, read(), sharding)
  if part != (0, 1):  # every process counts the bytes of its rows
    sizes = {
      record[:8]: int.from_bytes(record[8:])
      for record in processes.gather_bytes(part[0].to_bytes(8) + size.to_bytes(8))
    }
    size = sum(sizes.values())
  return {name: float(value) for name, value in summary(total, size).items()}


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
