"""What a study records: the time of steps and arms, and the machines."""

import json

import pytest
from ml_collections import ConfigDict

from tfm.analysis import estimate
from tfm.config.assemble import Experiment
from tfm.studies import results_table as study_results
from tfm.studies import runner, store
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
    return runner.measure_step_seconds(study, tmp_path, keep, {name: arms[name] for name in ('base', *names)})

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
    store.write_once(tmp_path / 'arms/deep/time.json', dict(seconds=9))['seconds'] == 8
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
