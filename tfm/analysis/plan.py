"""Compiles a step and analyses it: memory, FLOPs, collectives and the time bound.

The field names of `StepPlan` and `Memory` are the keys of plan.json.
"""

import dataclasses
import math
import re
import time
from collections.abc import Mapping

import jax
from jax.sharding import Mesh

from tfm.analysis import attention_kernels, collectives, hlo, hlo_cost, torus
from tfm.analysis import roofline as bounds
from tfm.analysis.lowering import Step
from tfm.analysis.roofline import Bound
from tfm.parallel import chip_specs
from tfm.parallel.chip_specs import Chip


UNITS = {'': 1, 'B': 1, 'K': 2**10, 'M': 2**20, 'G': 2**30, 'T': 2**40}


@dataclasses.dataclass(frozen=True)
class Memory:
  """Bytes of one device.

  Attributes:
    kinds: category → bytes.
    needed: their sum; capacity: of the device, None if unknown.
    source: of the numbers: 'compiler', whose allocation succeeded (TPU); 'error', of a failed allocation; or
      'sum' of the categories (other platforms).
    host: bytes that the device has in host memory beside them.
  """

  kinds: Mapping[str, int]
  needed: int
  capacity: int | None
  source: str
  host: int = 0

  @property
  def fits(self) -> bool | None:
    if self.source != 'sum':
      return self.source == 'compiler'
    return None if self.capacity is None else self.needed <= self.capacity


@dataclasses.dataclass(frozen=True)
class Compiled:
  """A compiled step, or the error of the compiler in `error`.

  Attributes:
    text: of the module; memory: bytes by the compiler's names; seconds: compile time.
    executable: what was compiled; None after an error.
  """

  text: str
  memory: Mapping[str, int]
  error: str
  seconds: float
  executable: jax.stages.Compiled | None = None


@dataclasses.dataclass(frozen=True)
class StepPlan:
  """The analysis of a step on a mesh.

  Attributes:
    name, tokens, flops: as in `Step`.
    mesh: axis sizes; device: device kind.
    memory: see `Memory`; error: the error of the compiler, else ''.
    products, moved: FLOPs and memory traffic of one device in the compiled text, including rematerialization;
      lower bounds. to_host, from_host: bytes that it moves to the memory of its host and back.
    is_complete: whether the text contains all FLOPs. If not, `products` is at least the model's FLOPs: in
      training if a loop has an unknown trip count, as in blockwise kernels; in decoding if products with a
      single row became sums.
    collectives: of one device. bound: None if the chip is unknown or compilation failed.
    seconds: compile time. chip: the share of one device; None if unknown.
    expected: the bound at rates that were measured (`calibration`); None if none were given.
  """

  name: str
  tokens: int
  flops: float
  mesh: Mapping[str, int]
  device: str
  memory: Memory
  error: str
  products: float
  moved: float
  to_host: float
  from_host: float
  is_complete: bool
  collectives: tuple[collectives.Collective, ...]
  bound: Bound | None
  seconds: float
  chip: Chip | None
  expected: Bound | None = None

  @property
  def devices(self) -> int:
    return math.prod(self.mesh.values())

  @property
  def rates(self) -> tuple[float, float] | None:
    """Tokens per second of all devices at the published peaks: if compute, memory and communication take
    turns, and if all overlap.
    """
    return self.bound and (self.tokens / self.bound.serial_seconds, self.tokens / self.bound.seconds)

  @property
  def rates_per_chip(self) -> tuple[float, float] | None:
    """`rates` of one chip, of which a TPU 7x has two devices."""
    if not self.bound:
      return None
    chips = self.devices / chip_specs.find_chip(self.device).devices
    return tuple(rate / chips for rate in self.rates)

  @property
  def mfu(self) -> float | None:
    """Upper bound on model FLOPs utilization (Chowdhery et al. 2022, app. B)."""
    return self.bound and self.flops / (self.bound.seconds * self.chip.flops * self.devices)


def compile_step(step: Step) -> Compiled:
  """Compiles a step; `error` holds the error if it does not fit into memory.

  Raises:
    ValueError: for compiler errors other than insufficient memory.
  """
  begin = time.perf_counter()
  try:
    executable = step.lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    text = str(error)
    if 'RESOURCE_EXHAUSTED' not in text:
      raise ValueError(f'the compiler rejected the {step.name} step: {text.splitlines()[0]}') from error
    return Compiled('', {}, text, time.perf_counter() - begin)
  analysis = executable.memory_analysis()
  sizes = {
    name: getattr(analysis, f'{name}_size_in_bytes')
    for name in ('argument', 'output', 'alias', 'temp', 'generated_code')
  }
  sizes['peak'] = getattr(analysis, 'peak_memory_in_bytes', 0)
  sizes['host_arguments'] = (
    analysis.host_argument_size_in_bytes
    + analysis.host_output_size_in_bytes
    - analysis.host_alias_size_in_bytes
  )
  sizes['host_temporaries'] = analysis.host_temp_size_in_bytes
  return Compiled(executable.as_text(), sizes, '', time.perf_counter() - begin, executable)


def analyze_step(
  step: Step, mesh: Mesh, compiled: Compiled, slices: int = 1, slice_axis: str = 'data'
) -> StepPlan:
  """Analyses a compiled step; the mesh axis `slice_axis` spans `slices` slices."""
  first = mesh.devices.flat[0]
  chip = chip_specs.find_chip(first.device_kind)
  chip = chip and chip.device
  capacity = memory_capacity(first, chip)
  memory = (
    memory_from_error(step, compiled.error, capacity)
    if compiled.error
    else memory_from_compiler(step, compiled.memory, capacity, first.platform)
  )
  common = dict(
    name=step.name,
    tokens=step.tokens,
    flops=step.flops,
    mesh=dict(mesh.shape),
    device=first.device_kind,
    memory=memory,
    seconds=compiled.seconds,
    chip=chip,
  )
  if compiled.error:
    return StepPlan(
      error=summary(compiled.error),
      products=0,
      moved=0,
      to_host=0,
      from_host=0,
      is_complete=True,
      collectives=(),
      bound=None,
      **common,
    )
  module = hlo.parse_module(compiled.text)
  # The loop of unknown trip count is that over the tokens to decode, of which there is one here.
  is_decoding = step.name == 'decoding'
  sent = tuple(
    collectives.find_collectives(
      module, mesh.shape, unknown_trip_count=1 if is_decoding else None, slice_axis=slice_axis
    )
  )
  cost = hlo_cost.count_cost(module)
  products = cost.flops + attention_kernels.count_flops(module, step.pairs / mesh.size)
  model = step.flops / mesh.size
  is_complete = products >= model if is_decoding else all(here.trip_count_known for here in module.executed())
  products = products if is_complete else max(products, model)
  bound = chip and bounds.compute_bound(
    chip,
    dataclasses.replace(cost, flops=products),
    sent,
    torus.usable_link_fractions(mesh, chip.dims, sent),
    bounds.Slices(slices, slice_axis),
  )
  return StepPlan(
    error='',
    products=products,
    moved=cost.bytes,
    to_host=cost.to_host,
    from_host=cost.from_host,
    is_complete=is_complete,
    collectives=sent,
    bound=bound,
    **common,
  )


def memory_capacity(device: jax.Device, chip: Chip | None) -> int | None:
  """The memory that an attached device reports, else the published capacity of its chip."""
  try:
    stats = device.memory_stats() or {}
  except (jax.errors.JaxRuntimeError, NotImplementedError, AttributeError):
    stats = {}  # a device that is not attached
  return stats.get('bytes_limit') or (chip and chip.memory)


def memory_from_compiler(step: Step, sizes: Mapping[str, int], capacity: int | None, platform: str) -> Memory:
  """Memory by category: the arguments by content, the rest by the compiler's names.

  Donated results need no memory. On a TPU the compiler reports the peak of live memory, which decides whether
  the step fits, and which counts arrays in host memory: arguments there are subtracted, and if there are
  temporaries, whose peak may be at another time, the sum is used, which is up to half more. On a CPU that
  peak omits temporaries, so the sum is used.
  """
  kinds, results = dict(step.arguments), sizes['output'] - sizes['alias']
  kinds['other arguments and padding'] = max(0, sizes['argument'] - sum(kinds.values()))
  kinds['results beside the arguments'] = results
  has_peak = platform == 'tpu' and sizes['peak'] and not sizes['host_temporaries']
  peak = sizes['peak'] - sizes['host_arguments']
  kinds['temporaries'] = max(0, peak - sizes['argument'] - results) if has_peak else sizes['temp']
  kinds['code'] = sizes['generated_code']
  kinds = {name: size for name, size in kinds.items() if size}
  source = 'compiler' if platform == 'tpu' else 'sum'
  host = sizes['host_arguments'] + sizes['host_temporaries']
  return Memory(kinds, sum(kinds.values()), capacity, source, host)


def memory_from_error(step: Step, text: str, capacity: int | None) -> Memory:
  """Memory from the text of an out-of-memory error.

  Its forms are a total, `Used 20.17G of 15.75G hbm`, with a breakdown below; the temporaries beside the
  arguments, `required for HLO temporaries (17.40G) exceeds available HBM (15.75G)`; or the array that could
  not be allocated.
  """
  if sizes := re.search(r'[Uu]sed ([\d.]+)([BKMGT]?) of ([\d.]+)([BKMGT]?) \w+', text):
    kinds = {
      name: size(number, unit)
      for name, number, unit in re.findall(
        r'^\s+(reserved|program|arguments) +([\d.]+)([BKMGT]?)\b', text, re.M
      )
    }
    return Memory(kinds, size(*sizes.groups()[:2]), size(*sizes.groups()[2:]), 'error')
  kinds = dict(step.arguments)
  if sizes := re.search(
    r'temporaries \(([\d.]+)([BKMGT]?)\) exceeds available \w+ \(([\d.]+)([BKMGT]?)\)', text
  ):
    kinds['temporaries'], capacity = size(*sizes.groups()[:2]), size(*sizes.groups()[2:])
  elif sizes := re.search(r'allocate ([\d.]+)\s*([KMGT]?)i?B', text):
    kinds['an array that could not be allocated'] = size(*sizes.groups())
  return Memory(kinds, sum(kinds.values()), capacity, 'error')


def size(number: str, unit: str) -> int:
  """('15.75', 'G') → bytes."""
  return round(float(number) * UNITS[unit])


def summary(text: str) -> str:
  """The first line of a compiler error, shortened."""
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  return lines[0].removeprefix('RESOURCE_EXHAUSTED: ')[:300] if lines else ''
