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


@pytest.mark.parametrize(
  'row, reason',
  [
    ('3', 'it is a int, not an object'),
    ('{"split": "train"}', 'step is missing'),
    ('{"step": 1}', 'split is missing'),
    ('{"step": "x", "split": "train"}', "step='x' must be of type int"),
    ('{"step": null, "split": "train"}', 'step=None must be of type int'),
    ('{"step": -1, "split": "train"}', 'step=-1 must be at least 0'),
    ('{"step": 1, "split": 2}', 'split=2 must be of type str'),
    ('{"step": 1, "split": "train", "loss": "abc"}', "loss='abc' is not a number"),
    ('{"step": 1, "split": "train", "loss": null}', 'loss=None is not a number'),
    ('{"step": 1, "split": "train", "loss": true}', 'loss=True is not a number'),
    ('{"step": 1, "split": "train", "diverged": 1}', 'diverged=1 is not a text'),
  ],
)
def test_a_damaged_row_is_named_with_what_is_wrong(tmp_path, row, reason):
  path = tmp_path / 'metrics.jsonl'
  path.write_text(f'{{"step": 0, "split": "train"}}\n{row}\n')
  for read in (metrics.read, lambda path: metrics.MetricsLog(path.parent, 1)):
    with pytest.raises(ValueError) as refusal:
      read(path)
    assert f'{path}:2 is not a row of metrics ({reason}); delete the line' in str(refusal.value)


def test_what_is_written_can_be_read(tmp_path):
  log = metrics.MetricsLog(tmp_path, 0)
  rows = [
    dict(step=0, split='train', loss=float('inf'), memory_bytes=2**31, batch='3f2a'),
    dict(step=1, split='validation', diverged='validation loss is nan at step 1'),
  ]
  for row in rows:
    values = {name: value for name, value in row.items() if name not in ('step', 'split')}
    assert log.write(row['step'], row['split'], values) == row
  log.close()
  assert metrics.read(tmp_path / 'metrics.jsonl') == rows


def test_sinks_know_the_run(tmp_path):
  opened = []

  class Opened:
    open = staticmethod(opened.append)

  metrics.MetricsLog(tmp_path, 3, [Opened()], dict(seed=1)).file.close()
  assert opened == [LoggedRun(tmp_path, dict(seed=1), 3)]
