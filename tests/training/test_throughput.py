"""Rates, MFU and the time left, against a clock of our own."""

import pytest

from tfm.parallel import chip_specs
from tfm.training import throughput
from tfm.training.throughput import Throughput


@pytest.fixture
def clock(monkeypatch):
  seconds = [0.0]
  monkeypatch.setattr(throughput.time, 'perf_counter', lambda: seconds[0])
  return seconds


def test_the_rate_leaves_out_the_first_step_and_evaluations(clock):
  measured = Throughput(flops_per_token=100.0, peak_flops=4000.0)
  assert measured.seconds_left(9) is None
  clock[0] = 60.0  # compiling
  measured.record_step(tokens=50)
  assert measured.tokens_per_second() == 0 and measured.mfu() is None and measured.seconds_left(9) is None
  clock[0] += 5
  measured.record_step(tokens=50)
  with measured.exclude():
    clock[0] += 100  # evaluating
  clock[0] += 5
  measured.record_step(tokens=50)
  assert measured.tokens_per_second() == pytest.approx(100 / 10)
  assert measured.mfu() == pytest.approx(10 * 100 / 4000)
  assert measured.seconds_left(4) == pytest.approx(4 * 110 / 2)  # evaluations come again


def test_mfu_needs_a_known_chip_and_a_known_model(clock):
  for factors in ((None, 4000.0), (100.0, None)):
    measured = Throughput(*factors)
    for _ in range(2):
      clock[0] += 1
      measured.record_step(tokens=50)
    assert measured.tokens_per_second() == 50 and measured.mfu() is None


def test_the_longest_name_of_a_chip_counts(monkeypatch):
  class Device:
    device_kind = 'TPU v5 lite'

  monkeypatch.setattr(chip_specs.jax, 'devices', lambda: [Device()])
  monkeypatch.setattr(chip_specs.jax, 'device_count', lambda: 4)
  assert chip_specs.peak_flops() == 4 * 197e12
  Device.device_kind = 'cpu'
  assert chip_specs.peak_flops() is None
