"""Devices to compile for: of a named TPU topology or GPU host, or the attached devices."""

import importlib.util
import itertools
import math
import os
import re
from collections.abc import Sequence

import jax
from jax.experimental import topologies

from tfm.analysis import gpu_targets
from tfm.errors import require


HERE = 'here'
# generation → (dimensions, cores per chip in names such as v5p-128, options of the topology).
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
# Prevents libtpu from querying the machine for TPUs, so that it compiles on any machine and in several
# processes.
ENVIRONMENT = dict(
  TPU_SKIP_MDS_QUERY='1',
  TPU_ACCELERATOR_TYPE='v5litepod-16',
  TPU_WORKER_HOSTNAMES='localhost',
  ALLOW_MULTIPLE_LIBTPU_LOAD='1',
)
# The platform of JAX on this machine, which computes constants only.
PLATFORM = 'cpu'


def devices(name: str, slices: int = 1) -> list[jax.Device]:
  """The devices of `slices` topologies such as 'v5p:4x4x8' or 'h100:8'; the attached ones for 'here'.

  Raises:
    ValueError: for an unknown topology, with a valid one; or if the compiler is not installed: libtpu, or
      JAX's CUDA plugin.
  """
  if name == HERE:
    require(slices == 1, f'--slices={slices} needs a topology; omit it with --topology=here')
    return jax.devices()
  require(slices >= 1, f'--slices={slices} must be at least 1')
  generation, sizes = parse_topology(name)
  jax.config.update('jax_platforms', PLATFORM)
  if generation in gpu_targets.GPUS:
    require(
      gpu_targets.is_cuda_plugin_installed(),
      f"--topology={name} needs JAX's CUDA plugin, which is not installed; "
      "pip install -e '.[cuda-compiler]', or --topology=here",
    )
  else:
    require(
      is_libtpu_installed(),
      f'--topology={name} needs libtpu, the compiler for TPUs, which is not installed; '
      "pip install -e '.[tpu]', or --topology=here",
    )
  jax.config.update(
    'jax_enable_compilation_cache', False
  )  # cached programs could not be loaded without the devices
  if generation in gpu_targets.GPUS:
    return gpu_targets.devices(generation, *sizes, slices)
  os.environ.update({key: value for key, value in ENVIRONMENT.items() if key not in os.environ})
  how = dict(GENERATIONS[generation][2])
  if math.prod(sizes) == 1:
    how['chips_per_host_bounds'] = (1, 1, 1)
  if slices > 1:
    how['num_slices'] = slices
  try:
    return topologies.get_topology_desc(
      platform='tpu', topology_name=f'{generation}:{format_shape(sizes)}', **how
    ).devices
  except (RuntimeError, ValueError) as error:
    require('INVALID_ARGUMENT' in str(error), f'--topology={name} cannot be compiled for: {error}')
    raise ValueError(
      f'--topology={name} is unknown to libtpu ({str(error).splitlines()[0]}); '
      f'use {suggest_topology(generation, math.prod(sizes))}'
    ) from None


def is_libtpu_installed() -> bool:
  """Whether libtpu is installed."""
  return bool(os.environ.get('TPU_LIBRARY_PATH')) or importlib.util.find_spec('libtpu') is not None


def parse_topology(name: str) -> tuple[str, tuple[int, ...]]:
  """'v5p:4x4x8' → ('v5p', (4, 4, 8)); 'h100:8' → ('h100', (8,)).

  Raises:
    ValueError: for another form, with the nearest valid name.
  """
  known = (
    f'a topology is a TPU generation ({", ".join(GENERATIONS)}) with its chips per dimension, as v5e:4x4 '
    f'or v5p:4x4x8, or the GPUs of one host ({", ".join(gpu_targets.GPUS)}), as h100:8'
  )
  if core_count := parse_core_count(name):
    generation, chips = core_count
    raise ValueError(
      f'--topology={name} counts {"cores" if GENERATIONS[generation][1] > 1 else "chips"} ({chips} chips), '
      f'without their dimensions; use {suggest_topology(generation, chips)}'
    )
  generation, _, sizes = name.partition(':')
  generation = OTHER_NAMES.get(generation, generation)
  if generation in gpu_targets.GPUS:
    require(
      sizes.isdigit() and int(sizes) > 0,
      f'--topology={name} lacks the number of GPUs per host; use {generation}:8, and '
      '--slices=N for several hosts',
    )
    return generation, (int(sizes),)
  require(
    generation in GENERATIONS, f'--topology={name} is unknown; {known}; {HERE!r} uses the attached devices'
  )
  found = re.fullmatch(r'\d+(x\d+)*', sizes)
  numbers = tuple(map(int, sizes.split('x'))) if found else ()
  dims = GENERATIONS[generation][0]
  chips = math.prod(numbers)
  require(
    len(numbers) == dims and chips > 0,
    f'--topology={name} lacks the {dims} dimensions of {generation}; '
    f'use {suggest_topology(generation, chips or 16)}',
  )
  return generation, numbers


def parse_core_count(name: str) -> tuple[str, int] | None:
  """'v5p-128' → ('v5p', 64), generation and chips; None for a name of another form."""
  found = re.fullmatch(r'([a-z]\w*?)-(\d+)', name)
  generation = found and OTHER_NAMES.get(found[1], found[1])
  if generation not in GENERATIONS or not int(found[2]):
    return None
  return generation, max(1, int(found[2]) // GENERATIONS[generation][1])


def format_shape(sizes: Sequence[int]) -> str:
  """(4, 4, 8) → '4x4x8'."""
  return 'x'.join(map(str, sizes))


def nearest_slice(generation: str, chips: int) -> tuple[int, ...]:
  """The smallest available slice with enough chips, nearest to a cube or square; else the largest."""
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


def suggest_topology(generation: str, chips: int) -> str:
  """The topology with that many chips, such as 'v5e:4x4'; several of the largest if needed."""
  sizes = nearest_slice(generation, chips)
  slices = math.ceil(chips / math.prod(sizes))
  return f'{generation}:{format_shape(sizes)}' + (f' with --slices={slices}' if slices > 1 else '')
