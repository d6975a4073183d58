"""Devices to compile for: of a TPU topology or a box of GPUs, by its name, or those that are here."""

import importlib.util
import itertools
import math
import os
import re
from collections.abc import Sequence

import jax
from jax.experimental import topologies

from tfm.analysis import gpus
from tfm.errors import require


HERE = 'here'
# generation → (dimensions, cores that a name such as v5p-128 counts for each chip, how its chips are to be described).
GENERATIONS = {
  'v4': (3, 2, dict(chip_config_name='megacore')),
  'v5e': (2, 1, {}),
  'v5p': (3, 2, {}),
  'v6e': (2, 1, {}),
  'tpu7x': (3, 2, {}),
}
DEVICES = {'tpu7x': 2}  # of JAX, that one chip is, where it is not one
# Slices as they are sold: the largest of each generation; all of two dimensions; and of three those with less than four chips along
# one, as others have a multiple of four along each.
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
# libtpu asks the machine that it is on what it is, unless told; it need not be a TPU. Nor is one used, which several processes
# could not share.
ENVIRONMENT = dict(
  TPU_SKIP_MDS_QUERY='1',
  TPU_ACCELERATOR_TYPE='v5litepod-16',
  TPU_WORKER_HOSTNAMES='localhost',
  ALLOW_MULTIPLE_LIBTPU_LOAD='1',
)
# Of JAX on its own machine: nothing is computed there but constants.
PLATFORM = 'cpu'


def devices(name: str, slices: int = 1) -> list[jax.Device]:
  """The devices of `slices` topologies such as 'v5p:4x4x8' or 'h100:8', to compile for; of 'here', those that are attached.

  Raises:
    ValueError: for a name that is no topology, with one that would do, and without what compiles for them: libtpu, or JAX's
      plugin for CUDA.
  """
  if name == HERE:
    require(slices == 1, f'--slices={slices} is of a topology; what is here is as it is')
    return jax.devices()
  require(slices >= 1, f'--slices={slices} must be at least 1')
  generation, sizes = parse(name)
  jax.config.update('jax_platforms', PLATFORM)
  if generation in gpus.GPUS:
    require(
      gpus.is_cuda_plugin_installed(),
      f"--topology={name} needs JAX's plugin for CUDA, which compiles for GPUs and is not installed; "
      "pip install -e '.[cuda-compiler]', or --topology=here",
    )
  else:
    require(
      installed(),
      f'--topology={name} needs libtpu, the compiler for TPUs, which is not installed; '
      "pip install -e '.[tpu]', or --topology=here",
    )
  jax.config.update(
    'jax_enable_compilation_cache', False
  )  # nothing that is kept there could be read back without what it is for
  if generation in gpus.GPUS:
    return gpus.devices(generation, *sizes, slices)
  os.environ.update({key: value for key, value in ENVIRONMENT.items() if key not in os.environ})
  how = dict(GENERATIONS[generation][2])
  if math.prod(sizes) == 1:
    how['chips_per_host_bounds'] = (1, 1, 1)
  if slices > 1:
    how['num_slices'] = slices
  try:
    return topologies.get_topology_desc(
      platform='tpu', topology_name=f'{generation}:{shape(sizes)}', **how
    ).devices
  except (RuntimeError, ValueError) as error:
    require('INVALID_ARGUMENT' in str(error), f'--topology={name} cannot be compiled for: {error}')
    raise ValueError(
      f'--topology={name} is none that libtpu knows ({str(error).splitlines()[0]}); '
      f'{would(generation, math.prod(sizes))} would do'
    ) from None


def installed() -> bool:
  """Whether libtpu is there."""
  return bool(os.environ.get('TPU_LIBRARY_PATH')) or importlib.util.find_spec('libtpu') is not None


def parse(name: str) -> tuple[str, tuple[int, ...]]:
  """'v5p:4x4x8' → ('v5p', (4, 4, 8)); 'h100:8' → ('h100', (8,)).

  Raises:
    ValueError: for another form, with the nearest name of this one.
  """
  known = (
    f'a topology is a generation of TPUs, {", ".join(GENERATIONS)}, and its chips along each dimension, as v5e:4x4 or '
    f'v5p:4x4x8, or GPUs of one box, {", ".join(gpus.GPUS)}, as h100:8'
  )
  if known_chips := parse_core_count(name):
    generation, chips = known_chips
    raise ValueError(
      f'--topology={name} counts {"cores" if GENERATIONS[generation][1] > 1 else "chips"} ({chips} chips), and does '
      f'not say how they stand; {would(generation, chips)} would do'
    )
  generation, _, sizes = name.partition(':')
  generation = OTHER_NAMES.get(generation, generation)
  if generation in gpus.GPUS:
    require(
      sizes.isdigit() and int(sizes) > 0,
      f'--topology={name} does not say how many GPUs a box has; {generation}:8 would do, and '
      '--slices=N says how many boxes there are',
    )
    return generation, (int(sizes),)
  require(generation in GENERATIONS, f'--topology={name} is not known; {known}; {HERE!r} is what is attached')
  found = re.fullmatch(r'\d+(x\d+)*', sizes)
  numbers = tuple(map(int, sizes.split('x'))) if found else ()
  dims = GENERATIONS[generation][0]
  chips = math.prod(numbers)
  require(
    len(numbers) == dims and chips > 0,
    f'--topology={name} does not give the {dims} dimensions of {generation}; '
    f'{would(generation, chips or 16)} would do',
  )
  return generation, numbers


def parse_core_count(name: str) -> tuple[str, int] | None:
  """'v5p-128' → ('v5p', 64), the generation and how many chips; None for a name of another form."""
  found = re.fullmatch(r'([a-z]\w*?)-(\d+)', name)
  generation = found and OTHER_NAMES.get(found[1], found[1])
  if generation not in GENERATIONS or not int(found[2]):
    return None
  return generation, max(1, int(found[2]) // GENERATIONS[generation][1])


def shape(sizes: Sequence[int]) -> str:
  """(4, 4, 8) → '4x4x8'."""
  return 'x'.join(map(str, sizes))


def nearest(generation: str, chips: int) -> tuple[int, ...]:
  """The slice that is sold with as many chips, or else with the next number above, nearest to a cube or a square; the largest
  where none has so many."""
  largest = SLICES[generation]
  if len(largest) == 2:
    found = SQUARES
  else:
    sides = range(4, largest[-1] + 1, 4)
    found = [*HOSTS, *itertools.combinations_with_replacement(sides, 3)]
    found = [sizes for sizes in found if all(size <= most for size, most in zip(sizes, largest))]
  return min(
    (sizes for sizes in found if math.prod(sizes) >= chips),
    key=lambda sizes: (math.prod(sizes), sum(sizes)),
    default=largest,
  )


def would(generation: str, chips: int) -> str:
  """What has so many chips: 'v5e:4x4', or of the largest several."""
  sizes = nearest(generation, chips)
  slices = math.ceil(chips / math.prod(sizes))
  return f'{generation}:{shape(sizes)}' + (f' with --slices={slices}' if slices > 1 else '')
