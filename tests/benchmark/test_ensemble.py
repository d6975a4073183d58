"""The ensemble benchmark: its ratios. No test depends on a time."""

import argparse

import pytest

from tfm.benchmark import compare_ensemble


def test_speed_up_is_relative_to_single_runs(monkeypatch, capsys):
  seconds = {'1': [0.1, 0.3, 0.2], '2': [0.2] * 3, '4': [0.4] * 3, '8': [1.6] * 3}
  monkeypatch.setattr(compare_ensemble, 'measure', lambda module, runs: dict(seconds=seconds[runs].pop()))
  compare_ensemble.main(argparse.Namespace(rounds=3))
  rows = [
    line.split()
    for line in capsys.readouterr().out.splitlines()
    if line.split()[:1] and line.split()[0].isdigit()
  ]
  assert rows[-4:] == [
    ['1', '200.0', '200.0', '1.00'],
    ['2', '200.0', '100.0', '2.00'],
    ['4', '400.0', '100.0', '2.00'],
    ['8', '1600.0', '200.0', '1.00'],
  ]
  with pytest.raises(ValueError, match='--rounds=0 must be at least 1'):
    compare_ensemble.main(argparse.Namespace(rounds=0))
