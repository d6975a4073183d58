"""The rows that the hosts of a topology read: those of their devices, and each counted once."""

import json
import math
import shlex

import numpy as np
import pytest

from tests.paths import ROOT
from tfm.analysis import gpu_targets, topology
from tfm.config.schema import default_config
from tfm.data.row_share import process_shares
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding


# From 1 to 1,024 hosts; a slice is named once and counted once or twice.
TOPOLOGIES = (
  *('v5e:1x1', 'v5e:4x4', 'v5e:8x8', 'v5e:16x16', 'v6e:4x4', 'v6e:16x16'),
  *('v4:2x2x1', 'v4:4x4x4', 'v4:8x8x8', 'v5p:2x2x1', 'v5p:4x4x8', 'v5p:8x8x8', 'v5p:16x16x16'),
)


MESHES = (
  dict(data=-1),
  dict(data=-1, tensor=4),
  dict(data=2, fsdp=-1),
  dict(data=2, fsdp=-1, tensor=2),
  dict(data=2, fsdp=-1, sequence=4, tensor=2),
  dict(data=-1, expert=4),
  dict(data=-1, stage=4, tensor=2),
)


GRID = [
  (name, slices, sizes)
  for name in TOPOLOGIES
  for slices in (1, 2)
  for sizes in MESHES
  if math.prod(map(int, name.partition(':')[2].split('x'))) % math.prod(n for n in sizes.values() if n > 0)
  == 0
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize('name, slices, sizes', GRID, ids=str)
def test_hosts_read_the_rows_of_their_devices_for_a_topology(name, slices, sizes):
  """Of every host: the rows of its chips and no others; over all hosts each row is counted once.

  Hosts hold tiles of the torus, so that on most meshes their rows lie in several spans.
  """
  if not topology.is_libtpu_installed():
    pytest.skip("libtpu is not installed; pip install -e '.[tpu]'")
  assert_rows_are_shared(topology.devices(name, slices), sizes, slices)


def assert_rows_are_shared(devices, sizes, slices):
  mesh = meshes.make(sizes, devices, slices if slices > 1 else -1)
  rows = sharding.batch_sharding(mesh, sharding.parse_rules(default_config().rules))
  batch_size = 2 * math.prod(mesh.shape[axis] for axis in ('data', 'fsdp', 'expert'))
  shares = process_shares(rows, batch_size)
  assert set(shares) == {device.process_index for device in devices}
  held = {process: set() for process in shares}
  # Independently of the sharding: the place of a device on the axes of the rows.
  shape = [mesh.shape[axis] for axis in ('data', 'fsdp', 'expert')]
  names = list(mesh.shape)
  for place, device in np.ndenumerate(mesh.devices):
    at = [place[names.index(axis)] for axis in ('data', 'fsdp', 'expert')]
    first = 2 * int(np.ravel_multi_index(at, shape))
    held[device.process_index] |= {first, first + 1}
  assert {process: set(share.rows.tolist()) for process, share in shares.items()} == held
  counted = [row for share in shares.values() for row in share.rows[share.counted].tolist()]
  assert shares[min(shares)].is_complete or sorted(counted) == list(range(batch_size))


COMMITTED_PLANS = sorted((ROOT / 'docs' / 'plans').glob('*/plan.json'))


@pytest.mark.slow
@pytest.mark.parametrize('path', COMMITTED_PLANS, ids=[path.parent.name for path in COMMITTED_PLANS])
def test_hosts_of_a_committed_plan_read_their_rows_for_a_topology(path):
  """What was planned can be trained: on the machines of every committed plan each host can read its rows."""
  command = json.loads(path.read_text())['command']
  flags = dict(
    word.removeprefix('--').split('=', 1)
    for word in shlex.split(command)
    if word.startswith('--') and '=' in word
  )
  if not topology.is_libtpu_installed() or flags['topology'].partition(':')[0] in gpu_targets.GPUS:
    pytest.skip("libtpu is not installed (pip install -e '.[tpu]'), or the plan is for GPUs")
  slices = int(flags.get('slices', 1))
  sizes = json.loads(path.read_text())['plans'][0]['mesh']
  assert_rows_are_shared(topology.devices(flags['topology'], slices), sizes, slices)
