"""The rows and the curves of a run."""

import json
import warnings

import matplotlib.figure
import pytest

from tfm.training import metrics
from tfm.training.sinks.protocol import LoggedRun


@pytest.mark.parametrize(
  'rows', [[], [dict(step=1, split='train', loss=2.0)]], ids=['diverged at once', 'one step']
)
def test_curves_are_drawn_without_a_warning(tmp_path, rows):
  path = tmp_path / 'metrics.jsonl'
  path.write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    assert metrics.draw_curves(path).is_file()


def test_curves_are_the_losses_of_each_split_and_the_learning_rate(tmp_path, monkeypatch):
  figures = []
  monkeypatch.setattr(matplotlib.figure.Figure, 'savefig', lambda self, *_, **__: figures.append(self))
  rows = [
    dict(step=1, split='train', loss=3.0, learning_rate=0.5),
    dict(step=2, split='train', loss=2.0, learning_rate=0.25),
    dict(step=2, split='validation', loss=2.5),
  ]
  path = tmp_path / 'metrics.jsonl'
  path.write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
  metrics.draw_curves(path)
  top, bottom = figures[0].axes
  lines = {line.get_label(): line.get_xydata().tolist() for line in top.lines}
  assert lines == {'train (2.000)': [[1, 3], [2, 2]], 'validation (2.500)': [[2, 2.5]]}
  assert [line.get_xydata().tolist() for line in bottom.lines] == [[[1, 0.5], [2, 0.25]]]


def test_a_damaged_row_is_named(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  path.write_text('{"step": 1}\n{"loss": 2}\n')
  with pytest.raises(
    ValueError, match=r'metrics.jsonl:2 is not a row of metrics \(KeyError.*delete the line'
  ):
    metrics.read(path)


def test_sinks_know_the_run(tmp_path):
  opened = []

  class Opened:
    open = staticmethod(opened.append)

  metrics.MetricsLog(tmp_path, 3, [Opened()], dict(seed=1)).file.close()
  assert opened == [LoggedRun(tmp_path, dict(seed=1), 3)]
