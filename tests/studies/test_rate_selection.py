"""The learning rate of each arm is selected by runs at seeds that the report does not use."""

import dataclasses
import json
import math

import pytest

from tfm.commands import cli
from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.runs import load as runs
from tfm.runs.run_dir import RunDir
from tfm.studies import runner, store
from tfm.studies import study as studies
from tfm.studies.arms import Arm


@pytest.mark.slow
def test_learning_rates_are_selected_with_another_seed(file, tmp_path):
  assert cli.main(['ablate', f'{file}:rates', f'--workdir={tmp_path}']) == 0
  for arm in json.loads((tmp_path / 'results.json').read_text())['arms']:
    printed = json.loads((tmp_path / 'arms' / arm['name'] / 'arm.json').read_text())
    reached = {float(rate): loss for rate, loss in printed['rates']['reached'].items()}
    assert arm['rate'] == min(reached, key=reached.get)
    assert (
      runs.checkpoint_metadata(tmp_path / 'arms' / arm['name'] / 'seed0')['config']['optimizer'][
        'learning_rate'
      ]
      == arm['rate']
    )


def test_a_rate_counts_by_the_mean_of_its_runs_and_not_if_one_diverges(file, tmp_path, monkeypatch):
  """0.03 would be chosen by its first run, 0.01 by its second; two runs choose 0.003."""
  losses = {0.001: (3.0, 3.0), 0.003: (2.0, 2.2), 0.01: (2.6, 1.9), 0.03: (1.0, None)}
  reached, trained = {}, []

  def train(runs, record):
    for key, run in runs.items():
      loss = losses[run.config.optimizer.learning_rate][run.config.seed - runner.SELECTION_SEED]
      trained.append(run.workdir)
      if loss is None:
        record['diverged'][key] = 'the loss is nan'
      reached[run.workdir] = dict(loss=loss)

  monkeypatch.setattr(runner, 'train_runs', train)
  monkeypatch.setattr(store, 'final_metrics', lambda workdir: reached[workdir])
  study = dataclasses.replace(studies.load_study(file), learning_rates=(*losses,), runs_per_rate=2)
  arm = Arm('rope', {}, Experiment(resolve_config(complete(study.config))), {}, 0, 0.0, 0)
  selected = runner.select_learning_rate(study, arm, tmp_path, record := {})
  assert 0.001 < selected.config.optimizer.learning_rate < 0.01
  assert record['rates'] == dict(
    runs=2,
    beyond=0,
    rungs={},
    reached={'0.001': 3.0, '0.003': 2.1, '0.01': 2.25},
    diverged={'0.03': 'the loss is nan'},
  )
  assert len({*trained}) == 8
  assert study.selection_runs == 8


@pytest.mark.parametrize(
  ('beyond', 'loss', 'tried', 'rate'),
  [
    (0, lambda x: -x, {}, 0.008),  # at the highest
    (1, lambda x: -x, {0.016: -4}, 0.016),
    (3, lambda x: abs(x - 3), {0.016: 1}, 0.008),  # of which one brackets the best
    (3, lambda x: abs(x - 5), {0.016: 1, 0.032: 0, 0.064: 1}, 0.032),
    (3, lambda x: abs(x + 1), {0.0005: 0, 0.00025: 1}, 0.0005),
    (3, lambda x: -x if x < 4 else None, {0.016: None}, 0.008),  # the next diverges
  ],
)
def test_an_arm_that_is_best_at_an_end_tries_further_rates(
  file, tmp_path, monkeypatch, beyond, loss, tried, rate
):
  """Losses by the doublings of 0.001."""
  trained, grid = [], (0.002, 0.008, 0.001, 0.004)

  def reach(workdir):
    return dict(loss=loss(round(math.log2(float(workdir.name.removeprefix('rate')) / 0.001))))

  def train(runs, record):
    for key, run in runs.items():
      trained.append(run.config.optimizer.learning_rate)
      if reach(run.workdir)['loss'] is None:
        record['diverged'][key] = 'the loss is nan'

  monkeypatch.setattr(runner, 'train_runs', train)
  monkeypatch.setattr(store, 'final_metrics', reach)
  study = dataclasses.replace(studies.load_study(file), learning_rates=grid, rates_beyond=beyond)
  arm = Arm('rope', {}, Experiment(resolve_config(complete(study.config))), {}, 0, 0.0, 0)
  selected = runner.select_learning_rate(study, arm, tmp_path, record := {})
  assert {*trained} == {*grid, *tried} and selected.config.optimizer.learning_rate == rate
  found = record['rates']
  assert {float(key) for key in found['diverged']} == {key for key, value in tried.items() if value is None}
  for key, value in tried.items():
    assert value is None or found['reached'][f'{key:g}'] == value
  assert found['beyond'] == beyond


def test_a_rate_that_a_rung_dropped_beside_the_best_trains_in_full(file, tmp_path, monkeypatch):
  """The rung drops 0.001, as short trainings like high rates; in full it is the best, and 0.0005 is next."""
  losses = {0.0005: 2.4, 0.001: 2.0, 0.002: 2.2, 0.004: 2.5, 0.008: 3.0}

  def reach(workdir):
    rate = float(workdir.name.removeprefix('rate'))
    return dict(loss=-rate if workdir.parent.name.startswith('rung') else losses[rate])

  monkeypatch.setattr(runner, 'train_runs', lambda runs, record: None)
  monkeypatch.setattr(store, 'final_metrics', reach)
  study = dataclasses.replace(studies.load_study(file), learning_rates=(*losses,), rungs=(0.25,))
  arm = Arm('rope', {}, Experiment(resolve_config(complete(study.config))), {}, 0, 0.0, 0)
  selected = runner.select_learning_rate(study, arm, tmp_path, record := {})
  assert record['rates']['reached'] == {f'{rate:g}': loss for rate, loss in losses.items()}
  assert 0.0005 < selected.config.optimizer.learning_rate < 0.002


def test_an_arm_that_diverges_at_every_rate_is_a_result(file, tmp_path, monkeypatch):
  """Its seeds train at the least rate, and are counted as diverged: the arm has not failed."""
  rates_of_seeds = {}

  def diverge(runs, record):
    record.setdefault('diverged', {}).update(dict.fromkeys(runs, 'the loss is nan'))
    rates_of_seeds.update({key: run.config.optimizer.learning_rate for key, run in runs.items()})
    return []

  monkeypatch.setattr(runner, 'train_runs', diverge)
  study = dataclasses.replace(studies.load_study(file), learning_rates=(4e-3, 1e-3, 2e-3), rungs=())
  arm = Arm('rope', {}, Experiment(resolve_config(complete(study.config))), {}, 0, 0.0, 0)
  runner.run_arm(study, arm, tmp_path, {})
  record = store.read_arm(tmp_path)
  assert record['error'] is None and record['rate'] == 1e-3 and not store.has_error(tmp_path)
  assert {*record['diverged']} == {'0', '1'} and rates_of_seeds['0'] == rates_of_seeds['1'] == 1e-3
  assert {*record['rates']['diverged']} == {'0.001', '0.002', '0.004'}


def test_a_rung_warms_up_for_the_same_part_of_its_steps(file):
  """Of 40 steps with a warm-up of 20 a quarter has 10 with 5: with 20 it would never leave the warm-up."""
  study = studies.load_study(file)
  study.config.training.steps, study.config.optimizer.warmup = 40, 20
  arm = Arm('rope', {}, Experiment(resolve_config(complete(study.config))), {}, 0, 0.0, 0)
  for fraction, steps, warmup in ((0.25, 10, 5), (0.5, 20, 10)):
    config = runner.with_steps(arm, fraction).config
    assert (config.training.steps, config.optimizer.warmup) == (steps, warmup)
  assert (arm.config.training.steps, arm.config.optimizer.warmup) == (40, 20)


@pytest.mark.slow
def test_rungs_drop_rates_before_they_train_in_full(file, tmp_path, monkeypatch):
  """Of four rates three train in full; the rate of the seeds lies between them, and nothing trains twice."""
  assert cli.main(['ablate', f'{file}:rungs', f'--workdir={tmp_path}', '--arms=rope']) == 0
  record = store.read_arm(tmp_path / 'arms/rope')
  rung, full = record['rates']['rungs']['2']['reached'], record['rates']['reached']
  assert set(rung) == {'0.001', '0.003', '0.01', '0.03'}
  assert set(full) == set(sorted(rung, key=rung.get)[:3])
  assert min(map(float, full)) <= record['rate'] <= max(map(float, full))
  steps = {path.parent.name: store.last_step(path) for path in (tmp_path / 'arms/rope').glob('*/rate*')}
  assert steps == {'rung2': 2}
  seed = runs.checkpoint_metadata(tmp_path / 'arms/rope/seed0')['config']
  assert seed['optimizer']['learning_rate'] == record['rate']
  assert 'dropped after 2 steps' in (tmp_path / 'report.md').read_text()
  monkeypatch.setattr(runner, 'train_ensemble', None)
  assert cli.main(['ablate', f'{file}:rungs', f'--workdir={tmp_path}', '--arms=rope']) == 0
  assert store.read_arm(tmp_path / 'arms/rope')['rates'] == record['rates']


@pytest.mark.parametrize(
  ('changes', 'platform', 'devices', 'groups'),
  [
    ({}, 'cpu', 1, [[0, 2, 3, 4]]),
    ({'stop_when': 'at_most("loss", 1)'}, 'cpu', 1, [[0], [2], [3], [4]]),
    ({'stop_when': 'at_most("loss", 1)'}, 'cpu', 3, [[0, 2, 3], [4]]),
    ({'stop_when': 'at_most("loss", 1)'}, 'gpu', 1, [[0, 2, 3, 4]]),
    ({'local_checkpoint_dir': 'here'}, 'gpu', 3, [[0], [2], [3], [4]]),  # which no ensemble supports
  ],
)
def test_runs_that_may_end_early_wait_for_no_others_on_a_cpu(
  file, tmp_path, monkeypatch, changes, platform, devices, groups
):
  """The second run has diverged; a device trains one run at a time, unless all end at the same step."""
  config = complete(studies.load_study(file).config)
  config.training.update(changes)
  run_dirs = {
    seed: RunDir.from_config(resolve_config(config), seed, tmp_path / str(seed)) for seed in range(5)
  }
  monkeypatch.setattr(runner.jax, 'local_device_count', lambda: devices)
  monkeypatch.setattr(runner.jax, 'default_backend', lambda: platform)
  assert runner.group_runs(run_dirs, {1: 'the loss is nan'}) == groups


@pytest.mark.parametrize(
  ('rule', 'steps', 'rate'),
  [
    # By 100, 50 and 300 steps at 0.001, 0.003 and 0.01, though the metric is best where it took longest.
    ('at_most("loss", 2)', {'0.001': 100.0, '0.003': 50.0, '0.01': 300.0}, 0.00213),
    ('patience(2)', None, 0.01),  # no goal: ending sooner is not better
    ('at_most("perplexity", 9)', None, 0.01),  # of another metric
  ],
)
def test_rates_that_reach_a_goal_are_compared_by_their_steps(file, tmp_path, monkeypatch, rule, steps, rate):
  ends = {0.001: (100, 1.99), 0.003: (50, 1.98), 0.01: (300, 1.7), 0.03: (400, 2.4)}

  def train(runs, record):
    for run in runs.values():
      step, loss = ends[run.config.optimizer.learning_rate]
      row = dict(step=step, split='validation', loss=loss, perplexity=math.exp(loss))
      run.workdir.mkdir(parents=True)
      (run.workdir / 'metrics.jsonl').write_text(json.dumps(row) + '\n')

  monkeypatch.setattr(runner, 'train_runs', train)
  study = dataclasses.replace(studies.load_study(file), learning_rates=(*ends,))
  config = complete(study.config)
  config.training.update(steps=400, stop_when=rule)
  arm = Arm('rope', {}, Experiment(resolve_config(config)), {}, 0, 0.0, 0)
  selected = runner.select_learning_rate(study, arm, tmp_path, record := {})
  assert record['rates'].get('steps') == steps
  assert selected.config.optimizer.learning_rate == pytest.approx(rate, rel=0.3 if steps is None else 0.01)
  assert record['rates']['reached'] == {f'{key:g}': loss for key, (_, loss) in ends.items()}
