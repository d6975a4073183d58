"""The benchmark of starting: what it starts, and its table. No test depends on a time."""

import argparse

import pytest

from tfm.benchmark import compare_start, compilation


@pytest.mark.slow
def test_a_run_is_timed_to_its_first_step(tmp_path):
  seconds = compare_start.seconds_to_first_step(str(tmp_path / 'caches'), str(tmp_path / 'run'), 'lm:demo')
  assert seconds > 0 and (tmp_path / 'run' / 'checkpoints' / '2').is_dir() and (tmp_path / 'caches').is_dir()


def test_a_run_that_fails_says_why(tmp_path):
  with pytest.raises(RuntimeError, match=r'(?s)tfm train .* made no step:\n.*nothing_of_this_name'):
    compare_start.seconds_to_first_step(str(tmp_path), str(tmp_path / 'run'), 'nothing_of_this_name')


def test_the_step_is_lowered_and_compiled(monkeypatch):
  monkeypatch.setattr(compilation, 'ROWS', 1)
  shape = dict(layers=1, width=16, heads=2, length=16, vocab=32)
  for name in compilation.SHAPE:
    monkeypatch.setitem(compilation.SHAPE, name, shape[name])
  found = compilation.main(2)
  assert found['lowering'] > 0 and found['compiling'] > 0


def test_the_table_has_medians(monkeypatch, capsys):
  seconds = iter([1.0, 2.0, 9.0] * 3)
  monkeypatch.setattr(
    compare_start, 'measure', lambda module, layers: dict(lowering=next(seconds), compiling=4.0)
  )
  starts = iter([20.0, 7.0, 30.0, 8.0, 25.0, 6.0])
  monkeypatch.setattr(compare_start, 'seconds_to_first_step', lambda caches, workdir: next(starts))
  compare_start.main(argparse.Namespace(rounds=3))
  rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.split()[1:]]
  assert rows[-5:] == [
    *([str(layers), 'layers', '2.0', '4.0'] for layers in compare_start.LAYERS),
    [*'tfm train, empty caches'.split(), '25.0'],
    [*'tfm train, its own caches'.split(), '7.0'],
  ]
  with pytest.raises(ValueError, match='--rounds=0 must be at least 1'):
    compare_start.main(argparse.Namespace(rounds=0))
