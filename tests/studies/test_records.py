"""What a study records: the time of steps and arms, and the machines."""

import dataclasses
import json

import pytest
from ml_collections import ConfigDict

from tfm.analysis import estimate
from tfm.config.assemble import Experiment
from tfm.studies import finished_runs, store
from tfm.studies import results_table as study_results
from tfm.studies.measures.protocol import Value
from tfm.studies.step_times import measure_step_seconds
from tfm.studies.study import Study


def test_step_time_is_measured_once(tiny, tmp_path, monkeypatch):
  """A later plan uses the stored times of the first."""
  study = Study(
    question='Which?', config=ConfigDict(), base='base', arms={'base': {}, 'alibi': {}, 'deep': {}}
  )
  changes = dict(base={}, alibi={'model.position': 'alibi'}, deep={'model.layers': 4})
  arms = {name: Experiment(tiny(**fields)) for name, fields in changes.items()}
  clock, calls = iter([(2.0, 1.0), (9.0, 3.0), (8.0, 2.0)]), []
  monkeypatch.setattr(
    estimate,
    'measure_steps_in_turns',
    lambda base, others, seeds: calls.append([*others]) or {name: next(clock) for name in others},
  )

  def paced(keep, *names):
    return measure_step_seconds(study, tmp_path, keep, {name: arms[name] for name in ('base', *names)})

  assert paced(True) == dict(base=1.0) and calls == []
  assert paced(True, 'alibi') == dict(base=1.0, alibi=2.0)
  assert (
    paced(False, 'alibi', 'deep') == dict(base=1.0, alibi=2.0, deep=3.0)
    and not (tmp_path / 'arms/deep').exists()
  )
  # The machine takes twice as long now, for both.
  assert paced(True, 'alibi', 'deep') == dict(base=1.0, alibi=2.0, deep=4.0) == paced(True, 'alibi', 'deep')
  assert calls == [['alibi'], ['deep'], ['deep']]
  assert (
    store.write_time(tmp_path / 'arms/deep', dict(seconds=9))['seconds'] == 8
  )  # another process came first
  arms['deep'] = Experiment(tiny(**{'model.layers': 4, 'training.steps': 3}))
  assert paced(True, 'deep') == dict(base=2.0, deep=8.0)
  arms['deep'] = Experiment(tiny(**{'model.layers': 3}))
  with pytest.raises(
    ValueError, match='deep/time.json holds the time of another config: model.layers: 4 → 3; set it back'
  ):
    paced(True, 'deep')


@pytest.mark.slow
def test_steps_are_timed_in_turns(tiny):
  (found,) = estimate.measure_steps_in_turns(
    Experiment(tiny()), dict(deep=Experiment(tiny(**{'model.layers': 4}))), rounds=2
  ).values()
  assert min(found) > 0


def test_provenance_lists_every_machine_once(monkeypatch):
  monkeypatch.setattr(
    study_results, 'describe_machine', lambda: dict(machine='another', versions='jax 9', date='2999-01-01')
  )
  fields = dict(
    rope=[
      dict(machine='a', versions='v', date='2026-01-02'),
      dict(machine='b', versions='v', date='2026-01-01'),
    ],
    old=[],
  )
  reported = study_results.merge_provenance(fields)
  assert (reported['machine'], reported['versions'], reported['date']) == (
    'a; b',
    'v',
    '2026-01-01 to 2026-01-02',
  )
  assert (
    'another' in reported['written'] and 'no record of the machine and date of old' in reported['written']
  )


def test_elapsed_time_survives_a_kill(tmp_path):
  for run, seconds in (('seed0', 40.0), ('seed1', 40.0), ('rate0.1', 5.0)):
    (tmp_path / run).mkdir()
    (tmp_path / run / 'goodput.json').write_text(
      json.dumps(dict(seconds=dict(productive=seconds, lost=10.0)))
    )
  (tmp_path / 'arm.json').write_text(json.dumps(dict(name='a', seconds=7.0)))
  assert store.elapsed_seconds(tmp_path) == 65.0  # the seeds trained together
  (tmp_path / 'arm.json').write_text(json.dumps(dict(name='a', seconds=70.0)))
  assert store.elapsed_seconds(tmp_path) == 70.0
  (tmp_path / 'seed1/goodput.json').write_text('{"seconds"')
  assert store.elapsed_seconds(tmp_path) == 70.0


ARM, MACHINE = dict(name='a'), dict(machine='a', versions='v', date='2026-01-01')


@pytest.mark.parametrize(
  'file, content, reason',
  [
    ('arm.json', dict(seconds=1.0), 'name is missing'),
    ('arm.json', ARM | dict(seconds='x'), "seconds='x' must be of type float"),
    ('arm.json', ARM | dict(error=3), 'error=3 must be of type str | None'),
    ('arm.json', ARM | dict(diverged='x'), 'diverged is a str, not an object'),
    (
      'arm.json',
      ARM | dict(diverged=dict(x='nan')),
      'the name diverged.x must be the text of a whole number',
    ),
    ('arm.json', ARM | dict(rates=dict(reached={'0.1': 'x'})), "rates.reached.0.1='x' must be of type float"),
    ('arm.json', ARM | dict(rates=dict(rungs={'4': 3})), 'rates.rungs.4 is a int, not an object'),
    ('arm.json', ARM | dict(made=[MACHINE, dict(machine='a')]), 'made.1.versions is missing'),
    ('arm.json', ARM | dict(made=3), 'made is a int, not a list'),
    ('measured.json', {'induction()': 3}, 'induction() is a int, not a list'),
    ('measured.json', {'step': [dict(metric='m', x=None, why='')]}, 'step.0.value is missing'),
    ('measured.json', {'step': [dict(metric='m', x='1', value=1, why='')]}, "step.0.x='1' must be of type"),
    ('measured.json', [], 'it is a list, not an object'),
    ('time.json', dict(seconds=1.0, base_seconds=0), 'base_seconds=0 must be above 0'),
  ],
)
def test_damaged_files_of_a_study_are_named_with_what_is_wrong(tmp_path, file, content, reason):
  path = tmp_path / file
  path.write_text(json.dumps(content))
  read = {'arm.json': store.read_arm, 'measured.json': store.read_measured, 'time.json': store.read_time}
  with pytest.raises(ValueError) as refusal:
    read[file](tmp_path)
  assert f'{path} cannot be read as the ' in str(refusal.value) and reason in str(refusal.value)


def test_only_seeds_are_runs_of_an_arm(tmp_path):
  for name in ('seed10', 'seed2', 'seed2.bak', 'seeds', 'rate0.1'):
    (tmp_path / 'arms/a' / name / 'checkpoints').mkdir(parents=True)
  store.write_arm(tmp_path / 'arms/a', ARM)
  assert [run.name for run in finished_runs.find_runs(tmp_path)] == ['seed2', 'seed10']


def test_whatever_a_study_writes_can_be_read(tmp_path):
  outcome = dict(reached={'0.001': 2.0, '0.01': float('inf')}, diverged={'0.1': 'loss is nan'})
  arm = ARM | dict(
    error=None,
    unmeasured={'step': 'ValueError: x'},
    made=[MACHINE],
    diverged={'1': 'loss is nan'},
    seconds=3,
    rate=0.002,
    rates=outcome | dict(rungs={'4': outcome, '8': {}}),
    together=['a', 'b'],
  )
  store.write_arm(tmp_path, arm)
  assert store.read_arm(tmp_path) == arm and store.read_arm(tmp_path / 'none') == {}
  values = [Value('a', 1.0), Value('b', None, 3, 'no such target'), Value('c', float('inf'), 2.5)]
  measured = {'lengths((8, 16))': [dataclasses.asdict(value) for value in values], 'step': []}
  store.write_measured(tmp_path, measured)
  assert store.read_measured(tmp_path) == measured
