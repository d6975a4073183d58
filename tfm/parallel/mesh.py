"""The device mesh: how many ways the run is cut along each axis, and which devices are neighbours."""

import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from tfm.parallel import chips


# From the outermost to the innermost, whose devices are the nearest neighbours: of one board, one host. What an axis has
# to say grows in this order. Stages hand on activations, and copies of the model their gradients once a step, which may
# travel while others are computed; fsdp gathers each layer's parameters as it comes to it; experts are sent tokens, and
# pieces of a sequence keys and values, in every layer; and tensor adds up whole activations several times in each, while
# all wait for them.
AXES = {
  'stage': 'groups of layers, one after another (pipeline)',
  'data': 'copies of the model, each with its own rows of the batch',
  'fsdp': 'rows of the batch, with parameters and optimizer state cut over the same devices',
  'expert': 'rows of the batch, with the experts of mixtures cut over the same devices',
  'sequence': 'tokens of each row (context)',
  'tensor': 'heads, feed-forward and vocabulary of one layer',
}

# Those that a slow network between slices can carry.
SLOW_NETWORK_AXES = ('data', 'stage')


def resolve(sizes: Mapping[str, int], devices: int) -> dict[str, int]:
  """Fills in the one size that is -1 with the devices that are left.

  Raises:
    ValueError: if an axis is unknown, more than one is -1, or the product is not the device count.
  """
  sizes = {axis: sizes.get(axis, 1) for axis in AXES} | dict(sizes)
  for axis, size in sizes.items():
    if axis not in AXES:
      raise ValueError(f'mesh.{axis} is not a mesh axis; known: {", ".join(AXES)}')
    if size < 1 and size != -1:
      raise ValueError(f'mesh.{axis}={size} must be at least 1, or -1 for the devices that are left')
  inferred = [axis for axis, size in sizes.items() if size == -1]
  if len(inferred) > 1:
    raise ValueError(f'mesh.{inferred[0]} and mesh.{inferred[1]} are both -1; only one can take what is left')
  fixed = math.prod(size for size in sizes.values() if size != -1)
  if devices % fixed or (not inferred and fixed != devices):
    hint_applies = not inferred and devices % (fixed // sizes['data']) == 0
    raise ValueError(
      f'mesh {format_sizes(sizes)} needs {"a multiple of " if inferred else ""}{fixed} devices and there '
      f'are {devices}' + '; set mesh.data=-1 to take what is left' * hint_applies
    )
  return sizes | {axis: devices // fixed for axis in inferred}


def sharded_axes(sizes: Mapping[str, int]) -> dict[str, int]:
  """The axes along which something is cut."""
  return {axis: size for axis, size in sizes.items() if size != 1}


def format_sizes(sizes: Mapping[str, int]) -> str:
  """`fsdp=2 tensor=4`."""
  return ' '.join(f'{axis}={size}' for axis, size in sharded_axes(sizes).items()) or 'one device'


def group_by_slice(devices: Sequence[jax.Device], number: int = -1) -> list[list[jax.Device]]:
  """The devices in groups between which the network is slow.

  Args:
    number: of groups; -1: as many as the devices say that they are in, which those of a TPU do.

  Raises:
    ValueError: if the devices do not fall into so many equal groups.
  """
  slice_indices = sorted({getattr(device, 'slice_index', None) or 0 for device in devices})
  if number not in (-1, len(slice_indices)) and len(slice_indices) > 1:
    raise ValueError(
      f'slices.count={number} is not the {len(slice_indices)} slices that the devices say that they are in; leave it '
      'at -1'
    )
  validate_slice_count(number, len(devices))
  if len(slice_indices) > 1:
    return [[device for device in devices if device.slice_index == index] for index in slice_indices]
  size = len(devices) // max(number, 1)
  return [list(devices[i : i + size]) for i in range(0, len(devices), size)]


def validate_slice_count(number: int, devices: int) -> None:
  """Refuses what no mesh of so many devices can be cut into."""
  if number < 1 and number != -1 or devices % max(number, 1):
    raise ValueError(
      f'slices.count={number} does not divide {devices} devices; -1 takes what the devices say'
    )


def validate_slice_axis(axis: str) -> None:
  """Refuses what no mesh lets a slow network carry."""
  if axis not in SLOW_NETWORK_AXES:
    raise ValueError(
      f'slices.axis={axis!r} cannot be carried by a slow network; {" or ".join(map(repr, SLOW_NETWORK_AXES))} can'
    )


def validate_slices(sizes: Mapping[str, int], number: int, axis: str) -> None:
  """Refuses a mesh in which the slow network between `number` slices would carry another axis than `axis`."""
  validate_slice_axis(axis)
  if sizes[axis] % number:
    others = [f'slices.axis={other!r}' for other in SLOW_NETWORK_AXES if sizes[other] % number == 0]
    alternatives = ' or '.join([f'mesh.{axis}={math.lcm(sizes[axis], number)}', *others])
    raise ValueError(
      f'mesh.{axis}={sizes[axis]} does not divide over {number} slices, between which the network is slow '
      f'and carries {axis} alone; {alternatives} would do'
    )


def make(
  sizes: Mapping[str, int], devices: Sequence[jax.Device] | None = None, count: int = -1, axis: str = 'data'
) -> Mesh:
  """A mesh over the devices, all of them by default, with Auto axes (linen's constraints need them).

  Args:
    count, axis: of slices, and the mesh axis that goes from one to another; see `slices`.

  Raises:
    ValueError: for what `resolve`, `slices` and `check_slices` refuse.
  """
  devices = jax.devices() if devices is None else devices
  sizes, groups = resolve(sizes, len(devices)), group_by_slice(devices, count)
  validate_slices(sizes, len(groups), axis)
  sizes_within_slice = [size // len(groups) if name == axis else size for name, size in sizes.items()]
  # What mesh_utils.create_hybrid_device_mesh does of TPU slices and of processes, but for any groups. Six logical axes
  # rarely are whole physical ones.
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
  """The mesh that a config's `mesh` and `slices` describe, over all devices."""
  return make(config['mesh'], **config['slices'])


def current_platform() -> str:
  """Of the mesh in force, whose devices need not be here; outside of one of the devices that are."""
  device = jax.sharding.get_abstract_mesh().abstract_device
  return device.platform if device else jax.default_backend()


def gpu_capability(platform: str) -> str | None:
  """What the GPUs of this process say that they can compute, such as '9.0', or else what is known of those of the mesh in force,
  which need not be here; None where neither is told."""
  if device := attached_device(platform):
    return device.compute_capability
  device = jax.sharding.get_abstract_mesh().abstract_device
  chip = device and chips.find_chip(device.device_kind)
  return chip and chip.capability


def attached_device(platform: str) -> jax.Device | None:
  """A device of this process; None where JAX knows none of the platform."""
  try:
    return jax.local_devices(backend=platform)[0]
  except RuntimeError:
    return None
