"""Whether a checkpoint fits the config of the run in whose folder it is."""

import pytest

from tfm.runs.run_dir import RunDir


@pytest.mark.parametrize('schedule', ['constant', 'wsd(0.2)'])
def test_steps_may_grow(tiny, tmp_path, schedule):
  def run_dir(steps):
    config = tiny(**{'optimizer.schedule': schedule, 'training.steps': steps})
    return RunDir.from_config(config, 0, tmp_path)

  metadata = dict(config=run_dir(25).config.to_dict())
  for steps in (25, 30, 1000):
    assert run_dir(steps).require_same_config(metadata, 20) is metadata


def test_fewer_steps_than_are_trained_are_rejected(tiny, tmp_path):
  old, new = (tiny(**{'optimizer.schedule': 'constant', 'training.steps': steps}) for steps in (25, 19))
  with pytest.raises(ValueError, match='config.training.steps=19 is less than the 20 steps .* has trained'):
    RunDir.from_config(new, 0, tmp_path).require_same_config(dict(config=old.to_dict()), 20)


def test_other_learning_rates_name_init_from(tiny, tmp_path):
  old, new = tiny(**{'training.steps': 25}), tiny(**{'training.steps': 30, 'model.heads': 2})
  with pytest.raises(ValueError) as error:
    RunDir.from_config(new, 0, tmp_path).require_same_config(dict(config=old.to_dict()), 20)
  assert "schedule 'cosine' over 25 steps: to train on with others" in str(error.value)
  assert f'--config.init_from={tmp_path}' in str(error.value)
  assert 'training.steps: 25 → 30' in str(error.value) and 'model.heads: 4 → 2' in str(error.value)


def test_other_fields_do_not(tiny, tmp_path):
  with pytest.raises(ValueError, match='model.heads: 4 → 2') as error:
    RunDir.from_config(tiny(**{'model.heads': 2}), 0, tmp_path).require_same_config(
      dict(config=tiny().to_dict()), 3
    )
  assert 'init_from' not in str(error.value)
