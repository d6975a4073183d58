"""The device mesh: the size of each axis, and which devices are neighbours."""

import collections
import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from tfm.parallel import chip_specs


# From the outermost axis to the innermost, whose devices are nearest neighbours (one board, one host):
# communication grows in this order. Pipeline stages send activations, and data parallelism reduces gradients
# once per step, which can overlap with computation; fsdp gathers the parameters of each layer; expert and
# sequence parallelism exchange tokens, keys and values in every layer, which ulysses cannot overlap with
# computation; tensor parallelism reduces whole activations several times per layer, and every device waits.
AXES = {
  'stage': 'consecutive groups of layers (pipeline parallelism)',
  'data': 'rows of the batch, with the model replicated (data parallelism)',
  'fsdp': 'rows of the batch, with parameters and optimizer state sharded over the same devices',
  'expert': 'rows of the batch, with the experts of mixtures sharded over the same devices',
  'sequence': 'tokens of each row (context parallelism)',
  'ulysses': 'tokens of each row, and heads instead of tokens during attention',
  'tensor': 'heads, feed-forward width and vocabulary',
}

# The axes that may span slices, between which the network is slow.
SLOW_NETWORK_AXES = ('data', 'stage')


def resolve(sizes: Mapping[str, int], devices: int) -> dict[str, int]:
  """The sizes of all axes, with the one that is -1 inferred from the device count.

  Raises:
    ValueError: if an axis is unknown, if more than one is -1, or if the product is not the device count.
  """
  sizes = {axis: sizes.get(axis, 1) for axis in AXES} | dict(sizes)
  for axis, size in sizes.items():
    if axis not in AXES:
      raise ValueError(f'config.mesh.{axis} is not a mesh axis; use one of {", ".join(AXES)}')
    if size < 1 and size != -1:
      raise ValueError(f'config.mesh.{axis}={size} must be at least 1, or -1 for the remaining devices')
  inferred = [axis for axis, size in sizes.items() if size == -1]
  if len(inferred) > 1:
    raise ValueError(
      f'config.mesh.{inferred[0]} and config.mesh.{inferred[1]} are both -1; only one axis can take the '
      'remaining devices; set the other, such as config.mesh.data=1'
    )
  fixed = math.prod(size for size in sizes.values() if size != -1)
  if devices % fixed or (not inferred and fixed != devices):
    hint_applies = not inferred and devices % (fixed // sizes['data']) == 0
    raise ValueError(
      f'config.mesh: {format_sizes(sizes)} needs {"a multiple of " if inferred else ""}{fixed} devices and '
      f'there are {devices}' + '; set config.mesh.data=-1 to use the remaining devices' * hint_applies
    )
  return sizes | {axis: devices // fixed for axis in inferred}


def sharded_axes(sizes: Mapping[str, int]) -> dict[str, int]:
  """The axes of a size above 1."""
  return {axis: size for axis, size in sizes.items() if size != 1}


def format_sizes(sizes: Mapping[str, int]) -> str:
  """The axes of a size above 1, such as `fsdp=2 tensor=4`."""
  return ' '.join(f'{axis}={size}' for axis, size in sharded_axes(sizes).items()) or 'one device'


def group_by_slice(devices: Sequence[jax.Device], count: int = -1) -> list[list[jax.Device]]:
  """The devices of each slice; the network between slices is slow.

  Args:
    count: number of slices; -1: as the `slice_index` of the devices says. On TPUs it says which torus a chip
      is part of, and no other number is possible; on GPUs, which hosts share NVLink or not even that, and any
      number is.

  Raises:
    ValueError: if the devices do not form that many equal slices.
  """

  def slice_of(device):
    return getattr(device, 'slice_index', None) or 0

  reported = collections.Counter(map(slice_of, devices))
  if devices[0].platform == 'tpu' and len(reported) > 1 and count not in (-1, len(reported)):
    raise ValueError(
      f'config.slices.count={count} is not the {len(reported)} slices that the devices report; use -1'
    )
  if count == -1:
    count = len(reported)
    if len({*reported.values()}) > 1:
      raise ValueError(
        f'the devices report slices of {", ".join(map(str, reported.values()))} devices, which must be equal'
      )
  validate_slice_count(count, len(devices))
  ordered, size = sorted(devices, key=slice_of), len(devices) // count
  return [ordered[i : i + size] for i in range(0, len(ordered), size)]


def validate_slice_count(count: int, devices: int) -> None:
  """Raises ValueError unless the number of slices divides the devices."""
  if count < 1 and count != -1 or devices % max(count, 1):
    raise ValueError(
      f'config.slices.count={count} does not divide {devices} devices; '
      'use a divisor, or -1 for the slices that the devices report'
    )


def validate_slice_axis(axis: str) -> None:
  """Raises ValueError unless the axis may span slices."""
  if axis not in SLOW_NETWORK_AXES:
    raise ValueError(
      f'config.slices.axis={axis!r} cannot span slices; use {" or ".join(map(repr, SLOW_NETWORK_AXES))}'
    )


def validate_slices(sizes: Mapping[str, int], count: int, axis: str) -> None:
  """Raises ValueError unless `count` slices divide the size of `axis`, so that no other axis spans them."""
  validate_slice_axis(axis)
  if sizes[axis] % count:
    others = [f'config.slices.axis={other!r}' for other in SLOW_NETWORK_AXES if sizes[other] % count == 0]
    fast = 'config.slices.count=1 for GPUs between which the network is fast'
    alternatives = ' or '.join([f'config.mesh.{axis}={math.lcm(sizes[axis], count)}', *others, fast])
    raise ValueError(
      f'config.mesh.{axis}={sizes[axis]} is not divisible by {count} slices, which only {axis} may span; '
      f'use {alternatives}'
    )


def make(
  sizes: Mapping[str, int], devices: Sequence[jax.Device] | None = None, count: int = -1, axis: str = 'data'
) -> Mesh:
  """A mesh over the devices, by default all, with Auto axes (which linen's constraints need).

  Args:
    count, axis: the number of slices, and the mesh axis that spans them; see `group_by_slice`.

  Raises:
    ValueError: as `resolve`, `group_by_slice` and `validate_slices`.
  """
  devices = jax.devices() if devices is None else devices
  sizes, groups = resolve(sizes, len(devices)), group_by_slice(devices, count)
  validate_slices(sizes, len(groups), axis)
  sizes_within_slice = [size // len(groups) if name == axis else size for name, size in sizes.items()]
  # As mesh_utils.create_hybrid_device_mesh, but for any groups of devices. Six logical axes rarely coincide
  # with physical axes.
  blocks = [
    mesh_utils.create_device_mesh(sizes_within_slice, group, allow_split_physical_axes=True)
    for group in groups
  ]
  return Mesh(
    np.concatenate(blocks, axis=list(sizes).index(axis)),
    tuple(sizes),
    axis_types=(AxisType.Auto,) * len(sizes),
  )


def from_config(config: Mapping) -> Mesh:
  """The mesh of a config's `mesh` and `slices`, over all devices."""
  return make(config['mesh'], **config['slices'])


def current_platform() -> str:
  """The platform of the current mesh, attached or not; outside a mesh the default backend."""
  device = jax.sharding.get_abstract_mesh().abstract_device
  return device.platform if device else jax.default_backend()


def gpu_capability(platform: str) -> str | None:
  """The compute capability of the attached GPUs, such as '9.0', or else of those of the current mesh."""
  if device := attached_device(platform):
    return device.compute_capability
  device = jax.sharding.get_abstract_mesh().abstract_device
  chip = device and chip_specs.find_chip(device.device_kind)
  return chip and chip.capability


def attached_device(platform: str) -> jax.Device | None:
  """A device of this process on a platform; None if JAX has none."""
  try:
    return jax.local_devices(backend=platform)[0]
  except RuntimeError:
    return None
