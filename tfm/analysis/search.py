"""Which meshes, remat policies and microbatches there are to try, in which order, and what one that fits makes needless."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from ml_collections import ConfigDict

from tfm.analysis import estimate
from tfm.analysis.plan import Planned
from tfm.analysis.steps import PlanRequest, validate_mesh
from tfm.models import memory
from tfm.models.stack import REMAT
from tfm.parallel import sharding


# The axes that are tried unless others are asked for: every model can be cut along them.
USUAL = ('data', 'fsdp', 'tensor')
# An estimate is within a factor of two of what compilers say; so what is estimated to need more than twice what there is does not fit.
SURE = 2
# From what computes least again to what keeps least.
POLICIES = ('none', 'dots', 'dots_with_no_batch_dims', 'full')


@dataclasses.dataclass(frozen=True)
class Candidate:
  """What is tried: sizes of the mesh, a remat policy, microbatches."""

  mesh: tuple[tuple[str, int], ...]
  remat: str
  accumulation: int

  def config(self, config: ConfigDict) -> ConfigDict:
    """A config with these."""
    made = config.copy_and_resolve_references()
    made.mesh.update(dict.fromkeys(made.mesh, 1) | dict(self.mesh))
    made.model.remat, made.training.gradient_accumulation = self.remat, self.accumulation
    return made

  def __str__(self):
    cut = ' '.join(f'--config.mesh.{axis}={size}' for axis, size in self.mesh)
    return (
      f'{cut} --config.model.remat={self.remat} --config.training.gradient_accumulation={self.accumulation}'
    )


def candidates(
  request: PlanRequest, devices: int, slices: int, axes: Sequence[str], capacity: int | None
) -> list[Candidate]:
  """Those that can be: the mesh divides all that it cuts, and a device holds its part of the state, in the order in which
  they are worth a try: little `tensor` first, which is in the way of each layer, then few microbatches, then little remat.
  """
  found = []
  for sizes in factorizations(devices, len(axes)):
    mesh = tuple(zip(axes, sizes))
    if dict(mesh).get(request.config.slices.axis, 1) % slices:
      continue
    for accumulation in microbatches(request.config.training.batch_size):
      one = Candidate(mesh, request.config.model.remat, accumulation)
      try:
        trial = PlanRequest(one.config(request.config), request.vocab, request.source_vocab)
        abstract = estimate.abstract_mesh(trial.config, devices)
        validate_mesh(trial, abstract)
      except ValueError:
        continue
      rules = sharding.parse_rules(trial.config.rules)
      if (
        capacity is not None
        and sum(
          memory.on_device(part, abstract, rules) for part in (request.state.params, request.state.opt_state)
        )
        > capacity
      ):
        break
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
  """(1, 1, 8), (1, 2, 4), …: all ways to write n as a product of so many."""
  if parts == 1:
    yield (n,)
    return
  for first in (d for d in range(1, n + 1) if n % d == 0):
    for rest in factorizations(n // first, parts - 1):
      yield first, *rest


def microbatches(batch: int) -> list[int]:
  """Powers of two that divide a batch."""
  return [
    n for n in itertools.takewhile(lambda n: n <= batch, (2**i for i in itertools.count())) if batch % n == 0
  ]


def estimated(request: PlanRequest, devices: int) -> int:
  """Bytes that one device will need, as `tfm inspect` estimates them, which takes seconds where compiling takes minutes."""
  mesh, rules = estimate.abstract_mesh(request.config, devices), sharding.parse_rules(request.config.rules)
  return sum(
    size
    for _, size, _ in estimate.memory_by_kind(
      request.config, request.vocab, request.source_vocab, request.state, mesh, rules
    )
  )


def needless(one: Candidate, known: Sequence[tuple[Candidate, bool | None]]) -> bool:
  """Whether what is known already, which fits and which does not, answers: on the same mesh, something that fits computes less
  again in no more microbatches, or something that keeps less in as many does not fit."""
  for other, fits in known:
    if other.mesh != one.mesh:
      continue
    less = POLICIES.index(other.remat) <= POLICIES.index(one.remat) and other.accumulation <= one.accumulation
    more = POLICIES.index(other.remat) >= POLICIES.index(one.remat) and other.accumulation >= one.accumulation
    if less and fits or more and fits is False:
      return True
  return False


def best(tried: Sequence[tuple[Candidate, Planned]]) -> tuple[Candidate, Planned] | None:
  """The one that fits, or may, with the least bound; of equals the one whose parts take least together."""
  fit = [(one, planned) for one, planned in tried if planned.memory.fits is not False]

  def key(pair):
    bound = pair[1].bound
    return (
      (bound.seconds, bound.compute + bound.memory + bound.links + bound.network)
      if bound
      else (pair[1].products, pair[1].moved)
    )

  return min(fit, key=key, default=None)


assert set(POLICIES) == set(REMAT)
