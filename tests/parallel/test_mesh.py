"""Meshes: what is left is worked out, what cannot be is refused."""

import jax
import pytest
from jax.sharding import AxisType

from tfm.parallel import mesh as meshes


@pytest.mark.parametrize('sizes, devices, resolved', [
  (dict(data=-1, fsdp=1, tensor=1), 8, (8, 1, 1)),
  (dict(data=-1), 8, (8, 1, 1)),
  (dict(data=2, fsdp=-1, tensor=2), 8, (2, 2, 2)),
  (dict(fsdp=4, tensor=2), 8, (1, 4, 2)),
  (dict(data=-1, tensor=8), 8, (1, 1, 8)),
  (dict(data=-1), 1, (1, 1, 1)),
  (dict(tensor=1, fsdp=2, data=4), 8, (4, 2, 1)),  # the order is the axes' own
])
def test_resolve(sizes, devices, resolved):
  assert meshes.resolve(sizes, devices) == dict(zip(('data', 'fsdp', 'tensor'), resolved))


@pytest.mark.parametrize('sizes, complaint', [
  (dict(data=3), 'needs 3 devices and there are 8; set mesh.data=-1'),
  (dict(data=4, fsdp=4), 'needs 16 devices'),
  (dict(data=-1, fsdp=3), 'needs a multiple of 3 devices'),
  (dict(data=-1, fsdp=-1), 'mesh.data and mesh.fsdp are both -1'),
  (dict(data=0), 'mesh.data=0 must be at least 1'),
  (dict(fsdp=-2), 'mesh.fsdp=-2 must be at least 1'),
  (dict(model=2), 'mesh.model is not a mesh axis; known: data, fsdp, tensor'),
  (dict(), 'needs 1 devices and there are 8'),
])
def test_refusals(sizes, complaint):
  with pytest.raises(ValueError, match=complaint):
    meshes.resolve(sizes, 8)


def test_the_mesh_has_auto_axes_over_all_devices():
  """Explicit axes, the default of jax.make_mesh, would make linen's constraints assert."""
  made = meshes.make(dict(data=2, fsdp=-1))
  assert dict(made.shape) == dict(data=2, fsdp=4, tensor=1)
  assert set(made.devices.flat) == set(jax.devices()) and len(jax.devices()) == 8
  assert set(made.axis_types) == {AxisType.Auto}
