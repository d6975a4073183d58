"""How well a model does on a split: what its objective sums, over one pass."""

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
  """One pass over `batches`, each row counted once.

  Args:
    step: the compiled evaluation step: sums over a batch, by name.
    sharding: where a batch goes.
    token_bytes: [V], the UTF-8 bytes that each token stands for; None where no token is a target, or that is not known.
    summary: of an `Objective`: (sums over the split, bytes of all targets) → metrics.
    part: of each batch that `batches` has, of how many, as `device.process_rows` tells.
  """
  size = 0

  def read():
    nonlocal size
    for batch in batches:
      if token_bytes is not None and 'targets' in batch and batch['targets'].shape == batch['segments'].shape:
        size += int(token_bytes[batch['targets'][batch['segments'] > 0]].sum())
      yield batch

  total = totals(params, step, read(), sharding)
  if part != (0, 1):  # the other processes have counted the bytes of their own rows
    sizes = {
      record[:8]: int.from_bytes(record[8:])
      for record in processes.gather_bytes(part[0].to_bytes(8) + size.to_bytes(8))
    }
    size = sum(sizes.values())
  return {name: float(value) for name, value in summary(total, size).items()}


def totals(
  params: PyTree,
  step: Callable[[PyTree, Mapping[str, Array]], Mapping[str, Array]],
  batches: Iterable[Mapping[str, np.ndarray]],
  sharding: jax.sharding.Sharding,
) -> dict[str, np.ndarray]:
  """What `step` gives of each batch, added up in float64, by name; the arguments are those of `measure`."""
  total = {}
  for batch in batches:
    placed = {name: jax.make_array_from_process_local_data(sharding, x) for name, x in batch.items()}
    for name, x in jax.device_get(step(params, placed)).items():
      total[name] = total.get(name, 0) + x.astype(np.float64)
  return total
