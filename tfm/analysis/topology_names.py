"""The names of TPU slices and GPU hosts: what they mean, and which exist. JAX is not needed."""

import functools
import itertools
import math
import re
from collections.abc import Sequence

from tfm.config.names import table_names
from tfm.errors import require


HERE = 'here'
# generation → (dimensions, cores per chip in accelerator types such as v5p-128, options of the topology).
GENERATIONS = {
  'v4': (3, 2, dict(chip_config_name='megacore')),
  'v5e': (2, 1, {}),
  'v5p': (3, 2, {}),
  'v6e': (2, 1, {}),
  'tpu7x': (3, 2, {}),
}
DEVICES = {'tpu7x': 2}  # JAX devices per chip, if not one
# Available slices: the largest of each generation; all two-dimensional ones; and the three-dimensional ones
# with fewer than four chips along a dimension (others have multiples of four).
SLICES = {'v4': (16, 16, 16), 'v5e': (16, 16), 'v5p': (16, 20, 28), 'v6e': (16, 16), 'tpu7x': (16, 24, 24)}
SQUARES = (1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16)
HOSTS = (1, 1, 1), (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4)
OTHER_NAMES = {
  'v5litepod': 'v5e',
  'v6': 'v6e',
  'v5': 'v5p',
  'v7x': 'tpu7x',
  'v7': 'tpu7x',
  'ironwood': 'tpu7x',
  'trillium': 'v6e',
}
# The largest published training run had 50,944 chips (Google Cloud 2023, of TPU v5e).
MAX_CHIPS = 2**16
MAX_GPUS_PER_HOST = 16  # an HGX A100; others have 8
GPUS = table_names('analysis.gpu_targets:GPUS')


def require_topology(name: str) -> None:
  """Raises ValueError for a name that is neither 'here' nor one for `parse_topology`."""
  if name != HERE:
    parse_topology(name)


def parse_topology(name: str) -> tuple[str, tuple[int, ...]]:
  """'v5p:4x4x8' → ('v5p', (4, 4, 8)); 'v5p-256', which counts its cores, likewise; 'h100:8' → ('h100', (8,)).

  Raises:
    ValueError: for another form, or a slice that does not exist, with the nearest valid name.
  """
  if accelerator := parse_accelerator_type(name):
    generation, chips = accelerator
    sizes = nearest_slice(generation, chips)
    require(
      accelerator_type(generation, math.prod(sizes)) == f'{generation}-{name.rpartition("-")[2]}',
      f'--topology={name} is no slice: such names count {counted_unit(generation)}; '
      f'use {suggest_topology(generation, chips)}',
    )
    return generation, sizes
  generation, _, sizes = name.partition(':')
  generation = OTHER_NAMES.get(generation, generation)
  numbers = tuple(map(int, sizes.split('x'))) if re.fullmatch(r'[0-9]{1,9}(x[0-9]{1,9})*', sizes) else ()
  if generation in GPUS:
    require(
      len(numbers) == 1 and 1 <= numbers[0] <= MAX_GPUS_PER_HOST,
      f'--topology={name} lacks the number of GPUs per host, 1 to {MAX_GPUS_PER_HOST}; use {generation}:8, '
      'and --slices=N for several hosts',
    )
    return generation, numbers
  require(
    generation in GENERATIONS,
    f'--topology={name} is unknown; a topology is a TPU generation ({", ".join(GENERATIONS)}) with its chips '
    "per dimension, as v5e:4x4 or v5p:4x4x8; Google's accelerator type, as v5p-128, which counts two cores "
    'per chip of v4, v5p and tpu7x, and chips of v5e and v6e; or the GPUs of one host '
    f'({", ".join(GPUS)}), as h100:8; {HERE!r} uses the attached devices',
  )
  dims = GENERATIONS[generation][0]
  chips = math.prod(numbers) or 16
  require(
    len(numbers) == dims and min(numbers) > 0,
    f'--topology={name} lacks the {dims} dimensions of {generation}; '
    f'use {suggest_topology(generation, chips)}',
  )
  require(
    any(sorted(numbers) == sorted(sizes) for sizes in available_slices(generation)),
    f'--topology={name} is no slice of {generation}; use {suggest_topology(generation, chips)}',
  )
  return generation, numbers


def parse_accelerator_type(name: str) -> tuple[str, int] | None:
  """'v5p-128' → ('v5p', 64): generation and chips, rounded up; None for a name of another form."""
  found = re.fullmatch(r'([a-z][a-z0-9]*)-([1-9][0-9]{0,8})', name)
  generation = found and OTHER_NAMES.get(found[1], found[1])
  if generation not in GENERATIONS:
    return None
  return generation, -(-int(found[2]) // GENERATIONS[generation][1])


def accelerator_type(generation: str, chips: int) -> str:
  """('v5p', 64) → 'v5p-128', Google's name, which counts `counted_unit`; ('v5e', 16) → 'v5e-16'."""
  return f'{generation}-{chips * GENERATIONS[generation][1]}'


def counted_unit(generation: str) -> str:
  """What the accelerator types of a generation count."""
  return 'chips' if GENERATIONS[generation][1] == 1 else 'cores, two per chip'


def describe_topology(name: str, slices: int) -> str:
  """The devices that a name means: `v5p:4x4x4, 64 chips (v5p-128, which counts cores, two per chip)`."""
  if name == HERE:
    return 'the attached devices'
  generation, sizes = parse_topology(name)
  count, times = math.prod(sizes), f'{slices} × ' * (slices > 1)
  if generation in GPUS:
    return f'{times}{generation}:{count}, {slices * count:,} GPUs'
  return (
    f'{times}{generation}:{format_shape(sizes)}, {slices * count:,} chips '
    f'({times}{accelerator_type(generation, count)}, which counts {counted_unit(generation)})'
  )


def format_shape(sizes: Sequence[int]) -> str:
  """(4, 4, 8) → '4x4x8'."""
  return 'x'.join(map(str, sizes))


@functools.cache
def available_slices(generation: str) -> tuple[tuple[int, ...], ...]:
  """The slices of a generation, their sides in one order."""
  largest = SLICES[generation]
  if len(largest) == 2:
    return SQUARES
  sides = range(4, largest[-1] + 1, 4)
  found = (*HOSTS, *itertools.combinations_with_replacement(sides, 3))
  return tuple(sizes for sizes in found if all(size <= most for size, most in zip(sizes, largest)))


def nearest_slice(generation: str, chips: int) -> tuple[int, ...]:
  """The smallest available slice with enough chips, nearest to a cube or square; else the largest."""
  return min(
    (sizes for sizes in available_slices(generation) if math.prod(sizes) >= chips),
    key=lambda sizes: (math.prod(sizes), sum(sizes)),
    default=SLICES[generation],
  )


def suggest_topology(generation: str, chips: int) -> str:
  """The topology with that many chips, such as 'v5p:4x4x4 (v5p-128)'; several of the largest if needed."""
  sizes = nearest_slice(generation, min(chips, MAX_CHIPS))
  slices = min(math.ceil(chips / math.prod(sizes)), MAX_CHIPS // math.prod(sizes))
  name = accelerator_type(generation, math.prod(sizes))
  return f'{generation}:{format_shape(sizes)} ({name})' + f' with --slices={slices}' * (slices > 1)
