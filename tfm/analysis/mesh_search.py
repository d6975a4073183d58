"""The candidates of `tfm plan --search`: meshes, remat policies and microbatches, their order and pruning."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from ml_collections import ConfigDict

from tfm.analysis import estimate
from tfm.analysis.lowering import PlanRequest
from tfm.analysis.plan import StepPlan
from tfm.config.assemble import Experiment
from tfm.config.validate import validate_run, validate_state


# Estimates are within a factor of two of compilers, so an estimate above this multiple of the capacity cannot
# fit.
ESTIMATE_TOLERANCE = 2
# From the least recomputation to the least memory.
POLICIES = ('none', 'dots', 'dots_with_no_batch_dims', 'full')


@dataclasses.dataclass(frozen=True)
class Candidate:
  """A candidate: mesh sizes, a remat policy and a number of microbatches."""

  mesh: tuple[tuple[str, int], ...]
  remat: str
  accumulation: int

  def config(self, config: ConfigDict) -> ConfigDict:
    """The config with the candidate's settings."""
    changed = config.copy_and_resolve_references()
    changed.mesh.update(dict.fromkeys(changed.mesh, 1) | dict(self.mesh))
    changed.model.remat, changed.training.gradient_accumulation = self.remat, self.accumulation
    return changed

  def __str__(self):
    flags = ' '.join(f'--config.mesh.{axis}={size}' for axis, size in self.mesh)
    return (
      f'{flags} --config.model.remat={self.remat} --config.training.gradient_accumulation={self.accumulation}'
    )


def list_candidates(
  request: PlanRequest, devices: int, slices: int, axes: Sequence[str], capacity: int | None
) -> list[Candidate]:
  """The valid candidates: the mesh satisfies all constraints, and the state fits into each device.

  In order of expected speed: small `tensor` first, which communicates in every layer, then few microbatches,
  then little rematerialization.
  """
  found = []
  for sizes in factorizations(devices, len(axes)):
    mesh = tuple(zip(axes, sizes))
    if dict(mesh).get(request.config.slices.axis, 1) % slices:
      continue
    for accumulation in microbatch_counts(request.config.training.batch_size):
      one = Candidate(mesh, request.config.model.remat, accumulation)
      try:
        trial = Experiment(one.config(request.config))
        validate_run(trial, devices)
        abstract_mesh = estimate.abstract_mesh(trial.config, devices)
        validate_state(trial, request.state, abstract_mesh, capacity=capacity)
      except ValueError:
        continue
      found += [dataclasses.replace(one, remat=policy) for policy in POLICIES]
  return sorted(
    found,
    key=lambda one: (
      [size for axis, size in one.mesh if axis not in ('data', 'fsdp')],
      one.accumulation,
      -dict(one.mesh).get('fsdp', 1),
      POLICIES.index(one.remat),
    ),
  )


def factorizations(n: int, parts: int) -> Iterator[tuple[int, ...]]:
  """All ways to write n as a product of `parts` factors: (1, 1, 8), (1, 2, 4), …."""
  if parts == 1:
    yield (n,)
    return
  for first in (d for d in range(1, n + 1) if n % d == 0):
    for rest in factorizations(n // first, parts - 1):
      yield first, *rest


def microbatch_counts(batch: int) -> list[int]:
  """The powers of two that divide a batch."""
  return [
    n for n in itertools.takewhile(lambda n: n <= batch, (2**i for i in itertools.count())) if batch % n == 0
  ]


def estimate_bytes(request: PlanRequest, devices: int) -> int:
  """The estimate of bytes per device by `tfm inspect`, in seconds instead of the minutes of a compilation."""
  mesh, rules = estimate.abstract_mesh(request.config, devices), request.experiment.rules
  return sum(
    size
    for _, size, _ in estimate.memory_by_kind(
      request.experiment, request.vocab, request.source_vocab, request.state, mesh, rules
    )
  )


def is_redundant(one: Candidate, known: Sequence[tuple[Candidate, bool | None]]) -> bool:
  """Whether earlier results make a candidate redundant.

  So if on the same mesh a candidate fits with less recomputation and no more microbatches, or one with less
  memory does not fit.
  """
  for other, fits in known:
    if other.mesh != one.mesh:
      continue
    less = POLICIES.index(other.remat) <= POLICIES.index(one.remat) and other.accumulation <= one.accumulation
    more = POLICIES.index(other.remat) >= POLICIES.index(one.remat) and other.accumulation >= one.accumulation
    if less and fits or more and fits is False:
      return True
  return False


def best_plan(compiled: Sequence[tuple[Candidate, StepPlan]]) -> tuple[Candidate, StepPlan] | None:
  """The candidate that fits, or may fit, with the lowest bound; ties are broken by the sum of its parts."""
  fit = [(one, planned) for one, planned in compiled if planned.memory.fits is not False]

  def key(pair):
    bound = pair[1].bound
    return (bound.seconds, bound.serial_seconds) if bound else (pair[1].products, pair[1].moved)

  return min(fit, key=key, default=None)
