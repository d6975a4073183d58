"""One step, compiled: what it needs of a device, what it does, and how long it takes at least."""

import dataclasses
import math
import re
import time
from collections.abc import Mapping

import jax
from jax.sharding import Mesh

from tfm.analysis import bound as bounds
from tfm.analysis import collectives, hlo, hlo_cost
from tfm.analysis.bound import Bound
from tfm.analysis.steps import Step
from tfm.parallel import chips
from tfm.parallel.chips import Chip


UNITS = {'': 1, 'B': 1, 'K': 2**10, 'M': 2**20, 'G': 2**30, 'T': 2**40}


@dataclasses.dataclass(frozen=True)
class Memory:
  """Bytes of one device.

  Attributes:
    kinds: what is there, by name; of the arguments, what they are.
    needed: all of it; capacity: of the device, None where it is not known.
    told: by the 'compiler', which has laid out all that is alive at once in the memory of a TPU; by its 'refusal' to; or as the
      'sum' of what there is at some time, which elsewhere is all that is told.
  """

  kinds: Mapping[str, int]
  needed: int
  capacity: int | None
  told: str

  @property
  def fits(self) -> bool | None:
    if self.told != 'sum':
      return self.told == 'compiler'
    return None if self.capacity is None else self.needed <= self.capacity


@dataclasses.dataclass(frozen=True)
class Compiled:
  """What the compiler made of a step; `refused` is what it said instead.

  Attributes:
    text: of the module; memory: bytes by the compiler's own names; seconds: that it took.
  """

  text: str
  memory: Mapping[str, int]
  refused: str
  seconds: float


@dataclasses.dataclass(frozen=True)
class Planned:
  """A step on a mesh.

  Attributes:
    name, tokens, flops: as of the `Step`.
    mesh: sizes of its axes; device: its kind.
    memory: see `Memory`; refused: why the compiler made nothing, else ''.
    products, moved: FLOPs and bytes of one device, as the compiled text tells them, with what is computed again; at least.
    told: whether the text tells all products. If not, they are no fewer than the model's: in training where a loop does not tell
      how often it runs, as in kernels that go over the open blocks of a mask; in decoding where they are fewer, as products of a
      matrix with one row become sums.
    collectives: of one device. bound: None where the chip is not known, or nothing was made.
    seconds: of compiling. chip: a device's share; None where it is not known.
  """

  name: str
  tokens: int
  flops: float
  mesh: Mapping[str, int]
  device: str
  memory: Memory
  refused: str
  products: float
  moved: float
  told: bool
  collectives: tuple[collectives.Collective, ...]
  bound: Bound | None
  seconds: float
  chip: Chip | None

  @property
  def devices(self) -> int:
    return math.prod(self.mesh.values())

  @property
  def rate(self) -> float | None:
    """Tokens per second of all devices, at most."""
    return self.bound and self.tokens / self.bound.seconds

  @property
  def mfu(self) -> float | None:
    """Model FLOPs utilisation, at most (Chowdhery et al. 2022, app. B)."""
    return self.bound and self.flops / (self.bound.seconds * self.chip.flops * self.devices)


def compiled(step: Step) -> Compiled:
  """Compiles it; what does not fit, the compiler refuses.

  Raises:
    ValueError: for what it refuses for another reason than memory.
  """
  begin = time.perf_counter()
  try:
    made = step.lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    text = str(error)
    if 'RESOURCE_EXHAUSTED' not in text:
      raise ValueError(f'the compiler refuses the {step.name} step: {text.splitlines()[0]}') from error
    return Compiled('', {}, text, time.perf_counter() - begin)
  told = made.memory_analysis()
  sizes = {
    name: getattr(told, f'{name}_size_in_bytes')
    for name in ('argument', 'output', 'alias', 'temp', 'generated_code')
  }
  sizes['peak'] = getattr(told, 'peak_memory_in_bytes', 0)
  return Compiled(made.as_text(), sizes, '', time.perf_counter() - begin)


def plan(step: Step, mesh: Mesh, made: Compiled, slices: int = 1, slow: str = 'data') -> Planned:
  """What a compiled step tells; over `slices` the mesh axis `slow` goes."""
  first = mesh.devices.flat[0]
  chip = chips.find_chip(first.device_kind)
  chip = chip and chip.device
  capacity = capacity_of(first, chip)
  memory = (
    refused_memory(step, made.refused, capacity)
    if made.refused
    else memory_of(step, made.memory, capacity, first.platform)
  )
  common = dict(
    name=step.name,
    tokens=step.tokens,
    flops=step.flops,
    mesh=dict(mesh.shape),
    device=first.device_kind,
    memory=memory,
    seconds=made.seconds,
    chip=chip,
  )
  if made.refused:
    return Planned(
      refused=summary(made.refused), products=0, moved=0, told=True, collectives=(), bound=None, **common
    )
  module = hlo.parse(made.text)
  # A loop that does not tell is that over the tokens to write, of which there is one here.
  writes = step.name == 'decoding'
  sent = tuple(collectives.collectives(module, mesh.shape, unknown=1 if writes else None, slow=slow))
  done = hlo_cost.work(module)
  products = done.products + (step.pairs / mesh.size if custom(module) else 0)
  model = step.flops / mesh.size
  told = products >= model if writes else all(here.known for here in module.executed())
  products = products if told else max(products, model)
  found = chip and bounds.compute_bound(
    chip, products, done.bytes, sent, bounds.usable_link_fractions(mesh, chip.dims, sent), slices, slow
  )
  return Planned(
    refused='', products=products, moved=done.bytes, told=told, collectives=sent, bound=found, **common
  )


def custom(module: hlo.Module) -> bool:
  """Whether products are hidden in custom kernels, which attention is made of here."""
  return any(
    made.opcode == 'custom-call'
    and re.search(r'custom_call_target="(tpu_custom_call|__cudnn|mosaic)', made.attributes)
    for made in (here.instruction for here in module.executed())
  )


def capacity_of(device: jax.Device, chip: Chip | None) -> int | None:
  """Of a device that is here what it says, else what the makers say."""
  try:
    told = device.memory_stats() or {}
  except (jax.errors.JaxRuntimeError, NotImplementedError, AttributeError):
    told = {}  # of a device that is not here
  return told.get('bytes_limit') or (chip and chip.memory)


def memory_of(step: Step, sizes: Mapping[str, int], capacity: int | None, platform: str) -> Memory:
  """Arguments by what they are, and the rest by the compiler's names. What is written in the place of an argument needs none
  of its own.

  Of a TPU the compiler tells the most that is alive at once, by which it accepts or refuses; its sum of temporaries is up to
  half as much again. On a CPU that peak leaves temporaries out, and the sum counts.
  """
  kinds, results = dict(step.arguments), sizes['output'] - sizes['alias']
  kinds['other arguments and padding'] = max(0, sizes['argument'] - sum(kinds.values()))
  kinds['results beside the arguments'] = results
  peaks = platform == 'tpu' and sizes['peak']
  kinds['temporaries'] = max(0, sizes['peak'] - sizes['argument'] - results) if peaks else sizes['temp']
  kinds['code'] = sizes['generated_code']
  kinds = {name: size for name, size in kinds.items() if size}
  return Memory(kinds, sum(kinds.values()), capacity, 'compiler' if platform == 'tpu' else 'sum')


def refused_memory(step: Step, text: str, capacity: int | None) -> Memory:
  """What a refusal tells, which has several forms: all that is `Used 20.17G of 15.75G hbm`, with lines of kinds below it; the
  temporaries, `required for HLO temporaries (17.40G) exceeds available HBM (15.75G)`, beside which the arguments are; or
  the array for which there was no room."""
  if sizes := re.search(r'[Uu]sed ([\d.]+)([BKMGT]?) of ([\d.]+)([BKMGT]?) \w+', text):
    kinds = {
      name: size(number, unit)
      for name, number, unit in re.findall(
        r'^\s+(reserved|program|arguments) +([\d.]+)([BKMGT]?)\b', text, re.M
      )
    }
    return Memory(kinds, size(*sizes.groups()[:2]), size(*sizes.groups()[2:]), 'refusal')
  kinds = dict(step.arguments)
  if sizes := re.search(
    r'temporaries \(([\d.]+)([BKMGT]?)\) exceeds available \w+ \(([\d.]+)([BKMGT]?)\)', text
  ):
    kinds['temporaries'], capacity = size(*sizes.groups()[:2]), size(*sizes.groups()[2:])
  elif sizes := re.search(r'allocate ([\d.]+)\s*([KMGT]?)i?B', text):
    kinds['an array beyond what else there was'] = size(*sizes.groups())
  return Memory(kinds, sum(kinds.values()), capacity, 'refusal')


def size(number: str, unit: str) -> int:
  """('15.75', 'G') → bytes."""
  return round(float(number) * UNITS[unit])


def summary(text: str) -> str:
  """The first sentences of what the compiler says."""
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  return lines[0].removeprefix('RESOURCE_EXHAUSTED: ')[:300] if lines else ''
