"""Devices to compile for: of a named TPU topology or GPU host, or the attached devices."""

import importlib.util
import math
import os

import jax
from jax.experimental import topologies

from tfm.analysis import gpu_targets
from tfm.analysis.topology_names import (
  GENERATIONS,
  GPUS,
  HERE,
  MAX_CHIPS,
  format_shape,
  parse_topology,
  suggest_topology,
)
from tfm.errors import require


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
    ValueError: for an unknown topology, with a valid one; for too many slices; or if the compiler is not
      installed: libtpu, or JAX's CUDA plugin.
  """
  require(slices >= 1, f'--slices={slices} must be at least 1')
  if name == HERE:
    require(slices == 1, f'--slices={slices} needs a topology; omit it with --topology=here')
    return jax.devices()
  generation, sizes = parse_topology(name)
  most = MAX_CHIPS // math.prod(sizes)
  require(
    slices <= most,
    f'--slices={slices} of --topology={name} exceed the {MAX_CHIPS:,} chips that can be planned for; '
    f'use at most {most:,}',
  )
  jax.config.update('jax_platforms', PLATFORM)
  if generation in GPUS:
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
  if generation in GPUS:
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
