"""The arithmetic of the bound, and the table of chips."""

import pytest

from tfm.analysis.collectives import Collective
from tfm.analysis.hlo_cost import DeviceCost
from tfm.analysis.roofline import Slices, compute_bound
from tfm.parallel import chip_specs
from tfm.parallel.chip_specs import CHIPS, Chip


CHIP = Chip('chip', flops=1000, memory=100, bandwidth=10, links=4, network=1, host=5, dims=2)


def test_the_largest_bounds():
  assert (
    compute_bound(CHIP, DeviceCost(5000, 20), []).seconds == 5
    and compute_bound(CHIP, DeviceCost(5000, 20), []).by == 'compute'
  )
  assert (
    compute_bound(CHIP, DeviceCost(1000, 20), []).seconds == 2
    and compute_bound(CHIP, DeviceCost(1000, 20), []).by == 'memory'
  )
  b = compute_bound(
    CHIP,
    DeviceCost(1000, 20),
    [Collective('all-gather', ('fsdp',), 4, 1, 16), Collective('collective-permute', ('tensor',), 2, 1, 8)],
  )
  # Of the gathered 16 a device sends three quarters.
  assert b.axes == dict(fsdp=3.0, tensor=2.0)
  assert b.links == b.seconds == 5 and b.by == 'links (fsdp)'
  assert b.serial_seconds == 1 + 2 + 5


def test_what_moves_to_the_host_and_back_moves_both_ways_at_once():
  b = compute_bound(CHIP, DeviceCost(1000, 10, to_host=20, from_host=25), [])
  assert b.host == 25 / 5 == b.seconds and b.by == 'transfers to the host'
  assert b.serial_seconds == 1 + 1 + 5


def test_an_axis_has_its_own_links_only():
  sent = [
    Collective('collective-permute', ('fsdp',), 2, 1, 8),
    Collective('collective-permute', ('tensor',), 2, 1, 8),
  ]
  b = compute_bound(
    CHIP, DeviceCost(0, 0), sent, {('collective-permute', (axis,)): 0.5 for axis in ('fsdp', 'tensor')}
  )
  assert b.axes == dict(fsdp=4.0, tensor=4.0) and b.links == 4  # each over its half, at once


def test_what_goes_from_slice_to_slice():
  """Of 8 devices in 2 slices each sends a quarter to the other slice, and three quarters and back within."""
  b = compute_bound(CHIP, DeviceCost(0, 0), [Collective('all-reduce', ('data',), 8, 1, 40)], slices=Slices(2))
  assert b.network == 2 * 0.5 * 10 / 1 and b.links == 2 * 0.75 * 40 / 4 and b.by == 'links (data)'
  b = compute_bound(CHIP, DeviceCost(0, 0), [Collective('all-reduce', ('data',), 2, 1, 40)], slices=Slices(2))
  assert b.network == 40 and b.links == 0 and b.by == 'network between slices'
  assert (
    compute_bound(
      CHIP, DeviceCost(0, 0), [Collective('all-reduce', ('fsdp',), 8, 1, 40)], slices=Slices(2)
    ).network
    == 0
  )


def test_what_a_compiler_has_split_between_slices_and_within_them():
  sent = [
    Collective('all-reduce', ('data',), 4, 1, 40),
    Collective('all-reduce', ('data',), 2, 1, 10, between=True),
  ]
  b = compute_bound(CHIP, DeviceCost(0, 0), sent, slices=Slices(2))
  assert b.network == 10 / 1 and b.links == 2 * 0.75 * 40 / 4 and b.axes == dict(data=b.links)


def test_every_chip_is_whole():
  for kind, chip in CHIPS.items():
    assert chip_specs.find_chip(kind) is chip
    assert 1e14 < chip.flops < 1e16 and 10e9 < chip.memory < 1e12 and 1e11 < chip.bandwidth < 1e13
    assert chip.network < chip.links < chip.bandwidth < chip.flops


@pytest.mark.parametrize(
  'kind, name',
  [
    ('TPU v5 lite', 'TPU v5e'),
    ('TPU v5', 'TPU v5p'),
    ('TPU v5p', 'TPU v5p'),
    ('TPU v6 lite', 'TPU v6e'),
    ('NVIDIA H100 80GB HBM3', 'H100 SXM'),
    ('NVIDIA A100-SXM4-80GB', 'A100 80GB SXM'),
  ],
)
def test_by_device_kind(kind, name):
  assert chip_specs.find_chip(kind).name == name


def test_what_is_not_known():
  assert chip_specs.find_chip('cpu') is None and chip_specs.find_chip('NVIDIA GeForce RTX 4090') is None


def test_two_devices_of_a_chip_share_it():
  one = CHIPS['TPU7x'].device
  assert (one.flops, one.memory) == (2307e12 / 2, 96 * 2**30) and one.device == one
