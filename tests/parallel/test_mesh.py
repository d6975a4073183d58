"""Meshes: what is left is worked out, what cannot be is refused, and neighbours are near."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.experimental import mesh_utils
from jax.sharding import AxisType

from tfm.config.overlay import complete
from tfm.config.schema import default_config
from tfm.parallel import mesh as meshes


@pytest.mark.parametrize(
  'sizes, devices, resolved',
  [
    (dict(data=-1, fsdp=1, tensor=1), 8, dict(data=8)),
    (dict(data=-1), 8, dict(data=8)),
    (dict(data=2, fsdp=-1, tensor=2), 8, dict(data=2, fsdp=2, tensor=2)),
    (dict(fsdp=4, tensor=2), 8, dict(fsdp=4, tensor=2)),
    (dict(data=-1, tensor=8), 8, dict(tensor=8)),
    (dict(data=-1), 1, {}),
    (dict(stage=2, sequence=2, expert=-1), 8, dict(stage=2, expert=2, sequence=2)),
  ],
)
def test_resolve(sizes, devices, resolved):
  got = meshes.resolve(sizes, devices)
  assert meshes.sharded_axes(got) == resolved and tuple(got) == tuple(
    meshes.AXES
  )  # the order is the axes' own


@pytest.mark.parametrize(
  'sizes, complaint',
  [
    (dict(data=3), 'needs 3 devices and there are 8; set config.mesh.data=-1'),
    (dict(data=4, fsdp=4), 'needs 16 devices'),
    (dict(data=-1, fsdp=3), 'needs a multiple of 3 devices'),
    (dict(data=-1, fsdp=-1), 'config.mesh.data and config.mesh.fsdp are both -1'),
    (dict(data=0), 'config.mesh.data=0 must be at least 1'),
    (dict(fsdp=-2), 'config.mesh.fsdp=-2 must be at least 1'),
    (
      dict(model=2),
      'mesh.model is not a mesh axis; use one of stage, data, fsdp, expert, sequence, ulysses, tensor',
    ),
    (dict(), 'needs 1 devices and there are 8'),
  ],
)
def test_refusals(sizes, complaint):
  with pytest.raises(ValueError, match=complaint):
    meshes.resolve(sizes, 8)


def test_the_mesh_has_auto_axes_over_all_devices():
  """Explicit axes, the default of jax.make_mesh, would make linen's constraints assert."""
  result = meshes.make(dict(data=2, fsdp=-1))
  assert meshes.sharded_axes(result.shape) == dict(data=2, fsdp=4)
  assert set(result.devices.flat) == set(jax.devices()) and len(jax.devices()) == 8
  assert set(result.axis_types) == {AxisType.Auto}


def test_the_config_has_every_axis():
  assert set(default_config().mesh) == set(meshes.AXES)


def test_the_axis_that_communicates_most_has_the_nearest_neighbours():
  """Devices are numbered board by board, host by host."""
  result = meshes.make(dict(stage=2, data=2, tensor=2))
  ids = np.vectorize(lambda device: device.id)(result.devices).squeeze()
  np.testing.assert_array_equal(ids, np.arange(8).reshape(2, 2, 2))


@dataclasses.dataclass(frozen=True)
class Chip:
  """What mesh_utils reads of a TPU."""

  id: int
  slice_index: int
  process_index: int = 0
  device_kind: str = 'imagined'
  platform: str = 'imagined'


# Listed in turns, so that the groups have to be found.
CHIPS = [Chip(i, i % 2) for i in range(8)]


class TestSlices:
  @pytest.mark.parametrize(
    'axis, sizes',
    [
      ('data', dict(data=2, fsdp=2, tensor=2)),
      ('stage', dict(stage=2, tensor=4)),
      ('data', dict(data=4, sequence=2)),
    ],
  )
  def test_the_slow_network_carries_one_axis_alone(self, axis, sizes):
    result = meshes.make(sizes, CHIPS, axis=axis)
    outer = [2 if name == axis else 1 for name in result.axis_names]
    inner = [size // n for size, n in zip(result.devices.shape, outer)]
    expected = mesh_utils.create_hybrid_device_mesh(inner, outer, CHIPS)
    np.testing.assert_array_equal(result.devices, expected)
    # Along any other axis all devices are of one slice.
    at = result.axis_names.index(axis)
    slices = np.vectorize(lambda chip: chip.slice_index)(result.devices)
    assert all((slices == slices.take([0], i)).all() for i in range(slices.ndim) if i != at)
    assert (slices.take(0, at) == 0).all() and (slices.take(-1, at) == 1).all()

  def test_a_config_may_state_slices_where_the_devices_do_not(self):
    config = complete(dict(mesh=dict(data=2, stage=2, tensor=2), slices=dict(count=2, axis='data')))
    ids = np.vectorize(lambda device: device.id)(
      meshes.from_config(config).devices
    ).squeeze()  # stage, data, tensor
    np.testing.assert_array_equal(ids, [[[0, 1], [4, 5]], [[2, 3], [6, 7]]])

  @pytest.mark.parametrize(
    'sizes, slices, complaint',
    [
      (
        dict(tensor=8),
        {},
        r'config.mesh.data=1 is not divisible by 2 slices, which only data may span; use config.mesh.data=2',
      ),
      (
        dict(data=1, stage=2, tensor=4),
        {},
        r"config.mesh.data=1 is not .* use config.mesh.data=2 or config.slices.axis='stage'",
      ),
      (
        dict(data=8),
        dict(axis='tensor'),
        "config.slices.axis='tensor' cannot span slices; use 'data' or 'stage'",
      ),
    ],
  )
  def test_what_the_slow_network_cannot_carry_is_refused(self, sizes, slices, complaint):
    with pytest.raises(ValueError, match=complaint):
      meshes.make(sizes, CHIPS, **slices)

  @pytest.mark.parametrize(
    'count, expected',
    [
      (-1, [[0, 2, 4, 6], [1, 3, 5, 7]]),
      (1, [[0, 2, 4, 6, 1, 3, 5, 7]]),
      (4, [[0, 2], [4, 6], [1, 3], [5, 7]]),
    ],
  )
  def test_of_gpus_the_config_says_where_the_network_is_slow(self, count, expected):
    """Whatever they report: NVLink may connect hosts, or only half of the GPUs of one."""
    groups = meshes.group_by_slice([dataclasses.replace(chip, platform='gpu') for chip in CHIPS], count)
    assert [[chip.id for chip in group] for group in groups] == expected

  def test_of_gpus_any_axis_may_span_hosts_with_a_fast_network(self):
    mesh = meshes.make(dict(data=1, fsdp=8), CHIPS, count=1)
    assert [chip.id for chip in mesh.devices.flat] == [0, 2, 4, 6, 1, 3, 5, 7]
    with pytest.raises(
      ValueError, match='or config.slices.count=1 for GPUs between which the network is fast'
    ):
      meshes.make(dict(data=1, fsdp=8), CHIPS)

  def test_tpus_have_the_slices_that_they_report(self):
    chips = [dataclasses.replace(chip, platform='tpu') for chip in CHIPS]
    assert len(meshes.group_by_slice(chips, 2)) == 2
    for count in (1, 4):
      with pytest.raises(
        ValueError, match=f'config.slices.count={count} is not the 2 slices that the devices'
      ):
        meshes.group_by_slice(chips, count)
    with pytest.raises(ValueError, match='the devices report slices of 4, 3 devices, which must be equal'):
      meshes.group_by_slice(chips[:-1])

  @pytest.mark.parametrize('number', [3, 0, -2])
  def test_unequal_groups_are_refused(self, number):
    with pytest.raises(ValueError, match=f'config.slices.count={number} does not divide 8 devices'):
      meshes.make(dict(data=8), count=number)
