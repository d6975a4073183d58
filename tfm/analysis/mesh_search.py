"""The candidates of `tfm plan --search`: meshes, remat policies and microbatches, their order and pruning.
Those of `--compare`: remat policies and presets of the compiler.
"""

import dataclasses
import itertools
import shlex
from collections.abc import Iterator, Sequence

import jax
from ml_collections import ConfigDict

from tfm.analysis import estimate
from tfm.analysis.lowering import PlanRequest
from tfm.analysis.plan import StepPlan
from tfm.config.assemble import Experiment
from tfm.config.validate import validate_device, validate_remat, validate_run, validate_state
from tfm.parallel.compiler_options import NONE, PRESETS, CompilerSettings, parse_presets


# Estimates are within a factor of two of compilers, so an estimate above this multiple of the capacity cannot
# fit.
ESTIMATE_TOLERANCE = 2
# From the least recomputation to the least memory.
POLICIES = (
  'none',
  'dots',
  'dots_with_no_batch_dims',
  "save('mixer/q mixer/k mixer/v attention')",
  "save('attention')",
  'full',
  "offload('block_input')",
)


@dataclasses.dataclass(frozen=True)
class Candidate:
  """A candidate: mesh sizes, a remat policy, a number of microbatches, and presets of the compiler."""

  mesh: tuple[tuple[str, int], ...]
  remat: str
  accumulation: int
  flags: str

  def config(self, config: ConfigDict) -> ConfigDict:
    """The config with the candidate's settings."""
    changed = config.copy_and_resolve_references()
    changed.mesh.update(dict.fromkeys(changed.mesh, 1) | dict(self.mesh))
    changed.model.remat, changed.training.gradient_accumulation = self.remat, self.accumulation
    changed.compiler.flags = self.flags
    return changed

  def __str__(self):
    fields = {f'mesh.{axis}': size for axis, size in self.mesh} | {
      'model.remat': self.remat,
      'training.gradient_accumulation': self.accumulation,
      'compiler.flags': self.flags,
    }
    return shlex.join(f'--config.{field}={value}' for field, value in fields.items())


def list_candidates(
  request: PlanRequest, devices: Sequence[jax.Device], slices: int, axes: Sequence[str], capacity: int | None
) -> list[Candidate]:
  """The valid candidates: the mesh satisfies all constraints, and the state fits into each device.

  In order of expected speed: small `tensor` first, which communicates in every layer, then few microbatches,
  then little rematerialization.
  """
  found, policies, config = [], list_policies(request, devices), request.config
  for sizes in factorizations(len(devices), len(axes)):
    mesh = tuple(zip(axes, sizes))
    if dict(mesh).get(config.slices.axis, 1) % slices:
      continue
    for accumulation in microbatch_counts(config.training.batch_size):
      one = Candidate(mesh, config.model.remat, accumulation, config.compiler.flags)
      try:
        trial = Experiment(one.config(config))
        validate_run(trial, len(devices))
        abstract_mesh = estimate.abstract_mesh(trial.config, len(devices))
        validate_state(trial, request.state, abstract_mesh, capacity=capacity)
      except ValueError:
        continue
      found += [dataclasses.replace(one, remat=policy) for policy in policies]
  return sorted(
    found,
    key=lambda one: (
      [size for axis, size in one.mesh if axis not in ('data', 'fsdp')],
      one.accumulation,
      -dict(one.mesh).get('fsdp', 1),
      POLICIES.index(one.remat),
    ),
  )


def list_policies(request: PlanRequest, devices: Sequence[jax.Device]) -> list[str]:
  """Those of `POLICIES` that the model and the devices have: names, and memory of the host."""
  return [policy for policy in POLICIES if is_valid(request.config, devices, 'model.remat', policy)]


def list_comparisons(request: PlanRequest, devices: Sequence[jax.Device]) -> list[Candidate]:
  """The config on its mesh, and what differs from it in the remat policy or in the presets alone.

  Names of the presets that the config has already, such as those that `auto` takes, are not repeated.
  """

  def presets(flags):
    return CompilerSettings(parse_presets(flags), {}).presets(devices[0].platform, len(devices))

  config = request.config
  mesh = tuple(estimate.abstract_mesh(config, len(devices)).shape.items())
  base = Candidate(mesh, config.model.remat, config.training.gradient_accumulation, config.compiler.flags)
  others = [dataclasses.replace(base, remat=policy) for policy in list_policies(request, devices)]
  others += [
    dataclasses.replace(base, flags=name)
    for name in (NONE, *PRESETS)
    if is_valid(config, devices, 'compiler.flags', name) and presets(name) != presets(base.flags)
  ]
  return list(dict.fromkeys([base, *others]))


def is_valid(config: ConfigDict, devices: Sequence[jax.Device], field: str, value: str) -> bool:
  """Whether the model and such devices accept the value of a field."""
  changed = config.copy_and_resolve_references()
  changed.update_from_flattened_dict({field: value})
  try:
    validate_remat(Experiment(changed))
    validate_device(Experiment(changed), devices[0], len(devices))
  except ValueError:
    return False
  return True


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
