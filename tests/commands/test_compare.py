"""tfm compare refuses what cannot be compared; tests/studies/test_runner.py compares runs that trained."""

import pathlib

import pytest

from tfm.commands import cli
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.studies import finished_runs


@pytest.mark.parametrize(
  'training, sentence',
  [
    (dict(evaluation_batches=1), 'training.evaluation_batches=1 evaluates other texts than 4 of the arm'),
    (dict(evaluation_batches=4, batch_size=16), 'training.batch_size=16 gives other rows than 8 of the arm'),
  ],
)
def test_runs_evaluated_on_other_texts_are_refused(training, sentence, monkeypatch, tmp_path, capsys):
  def arm(**training):
    fields = dict(data=dict(tokenizer='bytes', length=32), model=dict(layers=1, width=32, heads=2))
    return [(tmp_path, resolve_config(complete(fields | dict(training=training))))]

  groups = {'first': arm(batch_size=8, evaluation_batches=4), 'second': arm(**dict(batch_size=8) | training)}
  monkeypatch.setattr(finished_runs, 'group_by_arm', lambda folders: groups)
  assert cli.main(['compare', str(tmp_path), f'--to={tmp_path / "report"}']) == 2
  assert f"the arm 'second': {sentence}" in capsys.readouterr().err
  assert not pathlib.Path(tmp_path, 'report').exists()
