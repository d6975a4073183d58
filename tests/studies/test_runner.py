"""Running a study: each arm is trained and measured once, a stop is resumed, a failed arm stops no other."""

import csv
import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
from ml_collections import ConfigDict

from tfm.commands import cli
from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.runs import load as runs
from tfm.studies import finished_runs, runner, store
from tfm.studies import study as studies
from tfm.studies.arms import Arm
from tfm.studies.measures.decoding import Decoding
from tfm.studies.measures.lengths import Lengths
from tfm.studies.measures.protocol import Measure, Value
from tfm.studies.study import Study


@pytest.fixture(scope='module')
def done(file, tmp_path_factory):
  """The study, carried out."""
  workdir = tmp_path_factory.mktemp('done') / 'which'
  assert cli.main(['ablate', file, f'--workdir={workdir}']) == 0
  return workdir


def results(workdir):
  return json.loads((workdir / 'results.json').read_text())


@pytest.mark.slow
def test_results_equal_the_metrics_of_the_runs(done, capsys):
  found = results(done)
  assert [arm['name'] for arm in found['arms']] == ['rope', 'learned'] and found['study']['seeds'] == [0, 1]
  assert found['study']['data'] == runs.checkpoint_metadata(done / 'arms/rope/seed0')['corpus']
  for arm in ('rope', 'learned'):
    for seed in (0, 1):
      assert cli.main(['evaluate', f'--workdir={done}/arms/{arm}/seed{seed}']) == 0  # an ordinary run
      capsys.readouterr()
      losses = [
        v['value'] for v in found['values'] if (v['arm'], v['seed'], v['metric']) == (arm, seed, 'loss')
      ]
      assert losses == [store.final_metrics(done / 'arms' / arm / f'seed{seed}')['loss']]
  assert (done / 'report.html').is_file()
  with (done / 'results.csv').open() as lines:
    rows = [row for row in csv.DictReader(lines) if row['metric'] == 'loss']
  assert len(rows) == 4


def test_unmeasurable_values_have_a_reason(done):
  found = results(done)
  lengths = {
    arm: {v['x'] for v in found['values'] if v['arm'] == arm and v['metric'] == 'loss_at_length'}
    for arm in ('rope', 'learned')
  }
  assert lengths == {'rope': {16, 32}, 'learned': {16}}
  (note,) = next(arm for arm in found['arms'] if arm['name'] == 'learned')['notes']
  assert 'impossible' in note and '32' in note and note in (done / 'report.html').read_text()


@pytest.mark.slow
def test_a_finished_study_trains_nothing(file, done, monkeypatch, capsys):
  """And the machine and the day stay those of the training, whoever writes the report."""
  monkeypatch.setattr(
    runner, 'describe_machine', lambda: dict(machine='another', versions='jax 9', date='2999-01-01')
  )
  monkeypatch.setattr(runner, 'train_ensemble', None)
  before = results(done)
  assert cli.main(['ablate', file, f'--workdir={done}']) == 0
  assert results(done)['values'] == before['values'] and 'report.html' in capsys.readouterr().out
  (result,) = store.read_arm(done / 'arms/rope')['made']
  assert results(done)['study'].items() >= result.items() and result['machine'] != 'another'


@pytest.mark.slow
def test_slices_and_unknown_arms(file, tmp_path):
  assert cli.main(['ablate', file, f'--workdir={tmp_path}', '--slice=1/2']) == 0
  assert [p.name for p in (tmp_path / 'arms').iterdir()] == ['learned']
  assert 'rope is not trained yet' in (tmp_path / 'report.md').read_text()
  assert cli.main(['ablate', file, f'--workdir={tmp_path}', '--slice=2/2']) == 2
  assert cli.main(['ablate', file, f'--workdir={tmp_path}', '--arms=lerned']) == 2


def test_a_changed_config_is_rejected(file, done, capsys):
  assert cli.main(['ablate', file, f'--workdir={done}', '--config.model.width=32']) == 2
  assert 'model.width' in capsys.readouterr().err


def test_a_dry_run_writes_nothing(file, tmp_path, capsys):
  assert cli.main(['ablate', file, f'--workdir={tmp_path}/x', '--dry_run']) == 0
  assert not (tmp_path / 'x').exists()


@pytest.mark.slow
def test_an_arm_that_fails_does_not_stop_the_others(file, tmp_path, monkeypatch):
  train = runner.train_ensemble

  def failing(places):
    if places[0].config.model.position == 'rope':
      raise RuntimeError('out of memory')
    return train(places)

  monkeypatch.setattr(runner, 'train_ensemble', failing)
  assert cli.main(['ablate', file, f'--workdir={tmp_path}']) == 1
  rope, learned = results(tmp_path)['arms']
  assert rope['error'] == 'RuntimeError: out of memory' and learned['error'] is None
  assert 'out of memory' in (tmp_path / 'arms/rope/error.txt').read_text()
  assert {v['arm'] for v in results(tmp_path)['values']} == {'learned'}
  monkeypatch.setattr(runner, 'train_ensemble', train)
  assert cli.main(['ablate', file, f'--workdir={tmp_path}']) == 0
  assert {v['arm'] for v in results(tmp_path)['values']} == {'rope', 'learned'} and results(tmp_path)['arms'][
    0
  ]['error'] is None


def test_a_failing_measure_does_not_stop_others(done, tmp_path):
  class Given:
    measure_run = Measure.measure_run

    def __init__(self, prepare):
      self.prepare = prepare

  place, printed = tmp_path / 'seed0', dict(unmeasured={})
  shutil.copytree(done / 'arms/rope/seed0', place)
  (place / 'measured.json').unlink()
  measures = {'bad': Given(lambda run: 1 / 0), 'good': Given(lambda run: lambda params: [Value('made', 1.0)])}
  runner.measure_arm(Arm('rope', {}, None, {}, 0, 0.0, 0), tmp_path, [0], measures, printed)
  assert printed['unmeasured'] == {'bad': 'ZeroDivisionError: division by zero'} and list(
    store.read_measured(place)
  ) == ['good']


@pytest.mark.slow
def test_a_failed_measure_is_reported_and_repeated(file, done, tmp_path, monkeypatch):
  measured = shutil.copytree(done, tmp_path / 'copy')
  for path in measured.glob('arms/*/*/measured.json'):
    path.unlink()
  study = dataclasses.replace(
    studies.load_study(file), measures=('lengths((8,), targets=64)', 'decoding(tokens=2, context=8)')
  )
  monkeypatch.setattr(studies, 'load_study', lambda file: study)
  prepare = Lengths.prepare
  monkeypatch.setattr(Lengths, 'prepare', lambda self, run: 1 / 0)
  assert cli.main(['ablate', file, f'--workdir={measured}']) == 1
  found = results(measured)
  assert {'decoding_tokens_per_second'} < {v['metric'] for v in found['values']} and all(
    arm['error'] is None for arm in found['arms']
  )
  assert found['arms'][0]['notes'] == [
    'lengths((8,), targets=64) could not be measured: ZeroDivisionError: division by zero'
  ]
  monkeypatch.setattr(Lengths, 'prepare', prepare)
  monkeypatch.setattr(Decoding, 'prepare', None)  # what was measured is not again
  assert cli.main(['ablate', file, f'--workdir={measured}']) == 0
  assert (
    'loss_at_length' in {v['metric'] for v in results(measured)['values']}
    and not results(measured)['arms'][0]['notes']
  )


@pytest.mark.parametrize(
  'fields, sentence',
  [
    (dict(measures=('lenghts',)), "measures='lenghts' names 'lenghts', which measures does not have"),
    (dict(measures=('needle',)), "the arm 'rope': measures='needle' needs a run that trains on a needle"),
    (
      dict(metric='los'),
      "metric='los' is neither a validation metric nor a scalar metric of measures=.*did you mean 'loss'",
    ),
    (dict(metric='loss_at_length'), "metric='loss_at_length' is neither"),
    (
      dict(metric='test_loss', measures=('split',), learning_rates=(1e-3,)),
      "metric='test_loss' is not a validation metric, and learning_rates",
    ),
  ],
)
def test_invalid_metrics_and_measures_are_rejected_before_training(tiny, fields, sentence):
  arms = {name: Arm(name, {}, Experiment(tiny()), {}, 0, 0.0, 0) for name in ('rope', 'other')}
  study = Study(
    question='Which?',
    config=ConfigDict(),
    base='rope',
    arms={'rope': {}, 'other': {}},
    **dict(measures=('lengths', 'decoding', 'step', 'split')) | fields,
  )
  with pytest.raises(ValueError, match=sentence):
    runner.check_measures(study, arms)
  runner.check_measures(
    dataclasses.replace(study, metric='test_bits_per_byte', measures=('split',), learning_rates=()), arms
  )


@pytest.mark.parametrize(
  'changed, rates, sentence',
  [
    ({}, (1e-3, 3e-3), 'has a learning rate set by its config alone, and the study has learning_rates='),
    (
      dict(rate=1e-3, rates=dict(reached={'0.001': 2.0}, diverged={'0.1': 'loss is nan'})),
      (1e-3,),
      'from 0.001, 0.1, and the study',
    ),
    (
      dict(rate=3e-3, rates=dict(reached={'0.003': 2.0})),
      (),
      r'from 0.003, and the study has learning_rates=\(\)',
    ),
    (
      dict(rate=1e-3, rates=dict(reached={'0.001': 2.0}, runs=3)),
      (1e-3,),
      'has a learning rate selected with runs_per_rate=3, and the study has runs_per_rate=1; set it back',
    ),
    (
      dict(rate=1e-3, rates=dict(reached={'0.001': 2.0, '0.002': 2.0}, beyond=1)),
      (1e-3,),
      'has a learning rate selected with rates_beyond=1, and the study has rates_beyond=0; set it back',
    ),
    (
      dict(rate=1e-3, rates=dict(reached={'0.001': 2.0, '0.002': 2.0, '0.004': 3.0}, beyond=1)),
      (1e-3,),
      'from 0.001, 0.002, 0.004, and the study',
    ),
  ],
)
def test_changed_learning_rates_are_rejected(file, done, tmp_path, changed, rates, sentence):
  shutil.copytree(done / 'arms/rope', tmp_path / 'arms/rope')
  path = tmp_path / 'arms/rope/arm.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | changed))
  study = dataclasses.replace(studies.load_study(file), learning_rates=rates)
  rope = Arm('rope', {}, Experiment(resolve_config(complete(study.config))), {}, 0, 0.0, 0)
  with pytest.raises(ValueError, match=sentence):
    runner.check_resumable(study, dict(rope=rope), tmp_path)


@pytest.mark.slow
def test_learning_rate_variants_train_in_one_ensemble(file, done, tmp_path, monkeypatch):
  train, trained = runner.train_ensemble, []
  monkeypatch.setattr(runner, 'train_ensemble', lambda places: trained.append(len(places)) or train(places))
  assert cli.main(['ablate', f'{file}:twice', f'--workdir={tmp_path}']) == 0
  assert trained == [4, 2]  # rope and rope at twice the rate, of two seeds, and then learned
  assert cli.main(['ablate', f'{file}:twice', f'--workdir={tmp_path}']) == 0 and len(trained) == 2
  assert json.loads((tmp_path / 'arms/twice/arm.json').read_text())['together'] == ['rope', 'twice']
  alone, values = (
    {(v['arm'], v['seed'], v['metric'], v['x']): v['value'] for v in results(place)['values']}
    for place in (done, tmp_path)
  )
  for key, value in alone.items():
    assert 'second' in key[2] or values[key] == pytest.approx(value, rel=1e-4), key
  rates = {
    arm: runs.checkpoint_metadata(tmp_path / 'arms' / arm / 'seed1')['config']['optimizer']['learning_rate']
    for arm in ('rope', 'twice')
  }
  assert rates == dict(rope=3e-3, twice=6e-3)


@pytest.mark.slow
def test_the_steps_of_runs_that_may_end_early_are_a_metric(file, tmp_path, capsys):
  command = ['ablate', file, f'--workdir={tmp_path}', '--config.training.evaluate_every=1']
  assert cli.main([*command, '--config.training.stop_when=at_most("loss", 100)']) == 0
  steps = {(v['arm'], v['seed']): v['value'] for v in results(tmp_path)['values'] if v['metric'] == 'steps'}
  assert steps == {(arm, seed): 1 for arm in ('rope', 'learned') for seed in (0, 1)}
  assert {store.last_step(tmp_path / f'arms/{arm}/seed{seed}') for arm, seed in steps} == {1}
  assert '| steps' in (tmp_path / 'report.md').read_text()


@pytest.mark.slow
def test_diverged_seeds_are_reported(file, tmp_path):
  assert cli.main(['ablate', f'{file}:ill', f'--workdir={tmp_path}', '--arms=rope,ill']) == 0
  ill = next(arm for arm in results(tmp_path)['arms'] if arm['name'] == 'ill')
  assert ill['diverged'] == [0, 1] and ill['error'] is None


@pytest.mark.slow
def test_a_killed_study_resumes(file, done, tmp_path):
  """A SIGTERM in the middle of an arm: what is there stays, and the end is that of the unbroken study."""
  command = [sys.executable, '-m', 'tfm', 'ablate', file, f'--workdir={tmp_path}', '--jobs', '2']
  env = dict(os.environ)
  process = subprocess.Popen(command, env=env)
  expected = tmp_path / 'arms/rope/seed0/metrics.jsonl'
  while not (expected.exists() and expected.read_text()):
    assert process.poll() is None
    time.sleep(0.02)
  process.send_signal(signal.SIGTERM)
  assert process.wait(120) in (0, 1)
  assert not store.read_measured(expected.parent), 'the arm ended before the signal came'
  assert subprocess.run(command, env=env, timeout=600).returncode == 0

  def final(workdir):
    return {(v['arm'], v['seed'], v['metric'], v['x']): v['value'] for v in results(workdir)['values']}

  assert final(tmp_path) == pytest.approx(final(done), rel=1e-4)


@pytest.mark.slow
def test_compare_reports_finished_runs(done, tmp_path, capsys):
  folders = [str(done / 'arms' / arm / f'seed{seed}') for arm in ('rope', 'learned') for seed in (0, 1)]
  assert cli.main(['compare', *folders, f'--to={tmp_path}']) == 0
  ours, theirs = results(tmp_path), results(done)

  def plain(found):
    return {(v['arm'], v['seed'], v['metric']): v['value'] for v in found['values'] if v['x'] is None}

  assert plain(ours) == plain(theirs) and ours['study']['base'] == 'rope'
  assert [list(arm['changes']) for arm in ours['arms']] == [[], ['model.position']]
  capsys.readouterr()
  for words, sentence in (
    ([*folders, folders[0]], 'have the same config and seed 0'),
    ([str(done / 'arms')], 'is not the folder of a run'),
    ([folders[0], '--base=alibi'], '--base=alibi is not an arm'),
    ([folders[0], '--equal_within=-1'], '--equal_within=-1.0 must be above 0'),
  ):
    assert cli.main(['compare', *words, f'--to={tmp_path}/x']) == 2
    assert sentence in capsys.readouterr().err and not (tmp_path / 'x').exists()


@pytest.mark.slow
def test_compare_accepts_study_and_arm_folders(done, tmp_path):
  flags = ['--metric=accuracy', '--higher_is_better', '--equal_within=0.5']
  words = ['compare', str(done), f'--to={tmp_path / "a b"}', *flags]
  assert cli.main(words) == 0
  found = results(tmp_path / 'a b')
  assert [arm['name'] for arm in found['arms']] == ['rope', 'learned'] and found['study']['seeds'] == [0, 1]
  assert shlex.split(found['study']['command']) == ['tfm', *words]
  assert found['study']['machine'] == store.read_arm(done / 'arms/rope')['made'][0]['machine']
  assert 'learned is the same as rope within 0.5' in (tmp_path / 'a b/report.md').read_text()
  other = tmp_path / 'other/arms/rope'
  other.parent.mkdir(parents=True)
  shutil.copytree(done / 'arms/learned', other)  # another study, whose arm of this name is something else
  (other / 'arm.json').write_text(json.dumps(dict(name='rope', diverged={'1': 'nan'})))
  groups = finished_runs.group_by_arm(
    [run for folder in (done / 'arms/rope', other) for run in finished_runs.find_runs(folder)]
  )
  assert {name: len(runs) for name, runs in groups.items()} == {'which/rope': 2, 'other/rope': 2}
  # A run that diverged is counted, and its values are not.
  assert cli.main(['compare', str(done / 'arms/rope'), str(other), f'--to={tmp_path}/x']) == 0
  found = results(tmp_path / 'x')
  assert [arm['diverged'] for arm in found['arms']] == [[], [1]]
  assert {v['seed'] for v in found['values'] if v['arm'] == 'other/rope'} == {0}
