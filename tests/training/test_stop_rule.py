"""Runs that end before their last step."""

import numpy as np
import pytest

from tfm.runs.run_dir import RunDir
from tfm.runs.summary import summarize_run
from tfm.runs.train import train, train_ensemble
from tfm.training import checkpoint, metrics
from tfm.training.stop_rule import parse_stop_rule


pytestmark = pytest.mark.slow


def ends_after(rule, values, metric='loss'):
  """The number of validations after which a rule ends a run; None: it does not."""
  rows = [{metric: value} for value in values]
  return next((n for n in range(len(rows) + 1) if parse_stop_rule(rule)(rows[:n])), None)


@pytest.mark.parametrize(
  'rule, end',
  [
    ('never', None),
    ('at_most("loss", 2)', 4),
    ('at_least("loss", 3.5)', 1),
    ('at_least("loss", 5)', None),
    ('patience(2)', 6),  # 2.0 was the best
    ('patience(1)', 3),  # as good as before is no better
    ('patience(3)', None),
    ('patience(2, higher_is_better=True)', 3),
  ],
)
def test_when_a_run_ends(rule, end):
  assert ends_after(rule, (4.0, 3.0, 3.0, 2.0, 2.5, 2.1, 1.9)) == end


def test_another_metric_and_refusals():
  assert ends_after('at_least("accuracy", 0.99)', (0.1, 0.99), 'accuracy') == 2
  for text in ('at_least(0.99)', 'patience(0)', 'at_most("loss", "2")', 'sometimes'):
    with pytest.raises(ValueError):
      parse_stop_rule(text)


# Validations after steps 3, 6 and 9; their losses are below 5.7 from the first on.
FIELDS = {'training.steps': 9, 'training.evaluate_every': 3, 'training.save_every': 'steps(5)'}


def saved_steps(folder):
  checkpoints = checkpoint.Checkpoints(folder)
  steps = checkpoints.steps()
  checkpoints.close()
  return steps


def test_a_run_ends_is_saved_and_does_not_go_on(tiny, tmp_path):
  config = tiny(**FIELDS, **{'training.stop_when': 'at_most("loss", 9.0)'})
  train(config, tmp_path)
  rows = metrics.read(tmp_path / 'metrics.jsonl')
  assert saved_steps(tmp_path) == [3] and rows[-1]['step'] == 3
  assert RunDir(config, tmp_path).is_finished() and summarize_run(tmp_path).state == 'finished'
  train(config, tmp_path)  # nothing is left to do
  assert metrics.read(tmp_path / 'metrics.jsonl') == rows
  config.training.stop_when = 'never'
  assert not RunDir(config, tmp_path).is_finished()
  train(config, tmp_path)  # another rule may go on
  assert saved_steps(tmp_path)[-1] == 9


def test_each_run_of_an_ensemble_ends_by_its_own_validations(tiny, tmp_path):
  """At the step at which it would end alone, with the same parameters."""
  seeds = 3, 4
  losses = {}
  for seed in seeds:
    train(tiny(seed=seed, **FIELDS), tmp_path / f'whole{seed}')
    losses[seed] = metrics.read_validations(tmp_path / f'whole{seed}', 9)[0]['loss']
  early, late = sorted(seeds, key=losses.get)
  rule = {
    'training.stop_when': f'at_most("loss", {sum(losses.values()) / 2})'
  }  # after step 3: one of the two
  config = tiny(**FIELDS, **rule)
  folders = {seed: tmp_path / f'together{seed}' for seed in seeds}
  report = train_ensemble([RunDir.from_config(config, seed, folder) for seed, folder in folders.items()])
  assert saved_steps(folders[early]) == [3] and report.finished[0] == seeds.index(early)
  assert metrics.read(folders[early] / 'metrics.jsonl')[-1]['step'] == 3
  assert saved_steps(folders[late])[-1] > 3 and not report.diverged
  for seed in seeds:
    alone, (*_, last) = metrics.read_validations(tmp_path / f'whole{seed}', 9), saved_steps(folders[seed])
    ours = metrics.read_validations(folders[seed], last)[-1]
    theirs = next(row for row in alone if row['step'] == last)
    np.testing.assert_allclose(ours['loss'], theirs['loss'], rtol=2e-5)


def test_rejects_a_metric_that_validations_do_not_have(tiny, tmp_path):
  with pytest.raises(
    ValueError,
    match=r"stop_when='at_least\(\"acuracy\", 0.9\)': validations have no metric 'acuracy'; .* 'accuracy'\?",
  ):
    train(tiny(**{'training.stop_when': 'at_least("acuracy", 0.9)'}), tmp_path)
