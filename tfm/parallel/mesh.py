"""The device mesh: how many ways the run is cut along each axis."""

import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

AXES = {
  'data': 'copies of the model, each with its own rows of the batch',
  'fsdp': 'rows of the batch, with parameters and optimizer state cut over the same devices',
  'tensor': 'heads, feed-forward and vocabulary of one layer',
}


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
  free = [axis for axis, size in sizes.items() if size == -1]
  if len(free) > 1:
    raise ValueError(f'mesh.{free[0]} and mesh.{free[1]} are both -1; only one can take what is left')
  fixed = math.prod(size for size in sizes.values() if size != -1)
  if devices % fixed or (not free and fixed != devices):
    raise ValueError(f'mesh {sizes} needs {"a multiple of " if free else ""}{fixed} devices and there '
                     f'are {devices}; set mesh.data=-1 to take what is left')
  return sizes | {axis: devices // fixed for axis in free}


def make(sizes: Mapping[str, int], devices: Sequence[jax.Device] | None = None) -> Mesh:
  """A mesh over the devices, all of them by default, with Auto axes (linen's constraints need them)."""
  devices = jax.devices() if devices is None else devices
  sizes = resolve(sizes, len(devices))
  return jax.make_mesh(
    tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes), devices=devices)


def over(sizes: Mapping[str, int], devices: Sequence[jax.Device]) -> Mesh:
  """A mesh over devices that need not be here, such as a topology's; of several slices, between which the network is slow,
  `data` goes from one to another, and all else stays within.

  Raises:
    ValueError: for what `resolve` refuses, and if the slices do not divide `data`.
  """
  sizes, numbers = resolve(sizes, len(devices)), sorted({getattr(device, 'slice_index', None) or 0 for device in devices})
  if sizes['data'] % len(numbers):
    raise ValueError(f'mesh.data={sizes["data"]} does not divide over {len(numbers)} slices, between which the network is slow '
                     f'and carries data alone; mesh.data={math.lcm(sizes["data"], len(numbers))} would do')
  within = [size // len(numbers) if axis == 'data' else size for axis, size in sizes.items()]
  blocks = [mesh_utils.create_device_mesh(
    within, [device for device in devices if (getattr(device, 'slice_index', None) or 0) == number],
    allow_split_physical_axes=True) for number in numbers]
  return Mesh(np.concatenate(blocks, axis=list(sizes).index('data')), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def platform() -> str:
  """Of the mesh in force, whose devices need not be here; outside of one of the devices that are."""
  device = jax.sharding.get_abstract_mesh().abstract_device
  return device.platform if device else jax.default_backend()
