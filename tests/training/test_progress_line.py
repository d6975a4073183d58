"""Rates and MFU against a clock of our own."""

import pytest

from tfm.parallel import chip_specs
from tfm.training import progress_line


def test_rate_leaves_out_the_first_step_and_pauses(monkeypatch):
  clock = [0.0]
  monkeypatch.setattr(progress_line.time, 'perf_counter', lambda: clock[0])
  line = progress_line.Line(0, 10, flops_per_token=100.0, peak_flops=4000.0)
  clock[0] = 60.0  # compiling
  line.advance(1, tokens=50, loss=2.0)
  assert line.rate() == 0
  clock[0] += 5
  line.advance(2, tokens=50, loss=2.0)
  paused = line.pause()
  clock[0] += 100  # evaluating
  line.resume(paused)
  clock[0] += 5
  line.advance(3, tokens=50, loss=1.5)
  assert line.rate() == pytest.approx(10)
  assert line.mfu() == pytest.approx(10 * 100 / 4000)
  assert line.status(1.5) == 'loss 1.500  0.0k tokens/s  MFU 25.0%'


def test_the_longest_name_of_a_chip_counts(monkeypatch):
  class Device:
    device_kind = 'TPU v5 lite'

  monkeypatch.setattr(chip_specs.jax, 'devices', lambda: [Device()])
  monkeypatch.setattr(chip_specs.jax, 'device_count', lambda: 4)
  assert chip_specs.peak_flops() == 4 * 197e12
  Device.device_kind = 'cpu'
  assert chip_specs.peak_flops() is None
