"""Evaluation of a model on a split: the sums of its objective over one pass."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction

import jax
import numpy as np

from tfm.data.row_share import RowShare
from tfm.parallel import processes
from tfm.shapes import Array, Int, PyTree


class ByteCounter:
  """Counts the UTF-8 bytes of the targets of one pass.

  Args:
    token_bytes: [V], the number of bytes of each token; None if unknown or if no token is a target.
    share: this process's rows of each batch.
  """

  def __init__(self, token_bytes: Int[np.ndarray, 'V'] | None, share: RowShare):
    self.token_bytes, self.share, self.size = token_bytes, share, 0

  def count(self, batches: Iterable[Mapping[str, np.ndarray]]) -> Iterator[Mapping[str, np.ndarray]]:
    """Yields the batches, and adds up the bytes of their targets."""
    for batch in batches:
      has_targets = 'targets' in batch and batch['targets'].shape == batch['segments'].shape
      if self.token_bytes is not None and has_targets:
        counted = self.share.of_host(batch).counted[:, None] & (batch['segments'] > 0)
        self.size += int(self.token_bytes[batch['targets'][counted]].sum())
      yield batch

  def total(self) -> int:
    """The bytes of the rows of all processes."""
    if self.share.is_complete:
      return self.size
    return sum(int.from_bytes(record) for record in processes.gather_bytes(self.size.to_bytes(8)))


@dataclasses.dataclass(frozen=True)
class Total:
  """What one pass over a split, or over a part of a mixture, adds up to.

  Attributes:
    sums: of the evaluation step, by name; `tokens`, the number that counted, is among them.
    bytes: of the targets in UTF-8; 0 if unknown.
  """

  sums: Mapping[str, np.ndarray]
  bytes: float


def measure(
  params: PyTree,
  step: Callable[[PyTree, Mapping[str, Array]], Mapping[str, Array]],
  batches: Iterable[Mapping[str, np.ndarray]],
  sharding: jax.sharding.Sharding,
  byte_counter: ByteCounter,
) -> Total:
  """The total of one pass over `batches`; each row counts once.

  Args:
    step: the compiled evaluation step: sums over a batch, by name.
    sharding: of a batch.
    byte_counter: counts the bytes of the targets.
  """
  sums = sum_batches(params, step, byte_counter.count(batches), sharding, byte_counter.share)
  return Total(sums, byte_counter.total())


def mix_totals(totals: Mapping[str, Total], weights: Mapping[str, Fraction]) -> Total:
  """The total of a mixture: as many tokens as all parts have, of which each part has its weight.

  So a metric per token is the mean over the parts, by their weights.

  Args:
    totals, weights: of each part, by name; the weights add up to 1.
  """
  counts = {name: total.sums['tokens'] for name, total in totals.items()}
  tokens = sum(counts.values())
  scales = {name: float(weights[name]) * (tokens / max(count, 1)) for name, count in counts.items()}
  names = next(iter(totals.values())).sums
  sums = {name: sum(scales[part] * total.sums[name] for part, total in totals.items()) for name in names}
  size = sum(scales[part] * total.bytes for part, total in totals.items())
  return Total(sums | dict(tokens=tokens), size)


def sum_batches(
  params: PyTree,
  step: Callable[[PyTree, Mapping[str, Array]], Mapping[str, Array]],
  batches: Iterable[Mapping[str, np.ndarray]],
  sharding: jax.sharding.Sharding,
  share: RowShare,
) -> dict[str, np.ndarray]:
  """The sums of `step` over all batches in float64, by name; arguments as in `measure`.

  Args:
    share: this process's rows of each batch.
  """
  total = {}
  for batch in batches:
    for name, x in jax.device_get(step(params, share.place(batch, sharding))).items():
      total[name] = total.get(name, 0) + x.astype(np.float64)
  return total
