"""When to save."""

import math

import pytest

from tfm.config.assemble import Experiment
from tfm.config.validate import validate_run
from tfm.runs.train import train
from tfm.training import checkpoint
from tfm.training.save_interval import auto, evaluation, steps


def test_with_every_evaluation():
  assert evaluation()(7, 7, True, 1.0, 1.0) and not evaluation()(7, 7, False, 1.0, 1.0)


def test_every_so_many_steps():
  assert [i for i in range(1, 13) if steps(5)(i, 1, False, 0.0, 0.0)] == [5, 10]


def test_youngs_interval():
  """A save of 2 seconds and a failure every 4 hours: every 240 seconds; of steps of 0.5 seconds, 480."""
  due = auto(hours=4.0)
  assert math.sqrt(2 * 2 * 4 * 3600) == 240
  by_default = auto()  # a failure a day: saves of half a second every √86,400 = 293.9 seconds
  assert not by_default(293, 293, True, 0.5, 1.0) and by_default(294, 294, False, 0.5, 1.0)
  assert not due(1000, 479, True, 2.0, 0.5) and due(1000, 480, False, 2.0, 0.5)
  assert due(10, 10, True, 0.0, 0.5) and not due(9, 9, False, 0.0, 0.5)  # nothing was saved yet


@pytest.mark.parametrize(
  'spec, expected_message',
  [
    ('steps(0)', r"config.training.save_every='steps\(0\)': every=0 must be at least 1"),
    ('auto(hours=-1)', 'must be above 0'),
    ('sometimes', 'evaluation'),
    ('steps', 'every'),
  ],
)
def test_refusals(tiny, spec, expected_message):
  with pytest.raises(ValueError, match=expected_message):
    validate_run(Experiment(tiny(**{'training.save_every': spec})), 1)


@pytest.mark.slow
def test_a_run_saves_at_its_interval_and_at_its_end(tiny, tmp_path):
  train(
    tiny(
      **{
        'training.save_every': 'steps(2)',
        'training.keep_checkpoints': 9,
        'training.steps': 7,
        'training.evaluate_every': 4,
      }
    ),
    tmp_path,
  )
  checkpoints = checkpoint.Checkpoints(tmp_path)
  assert checkpoints.steps() == [2, 4, 6, 7] and checkpoints.find_step('best') in (4, 7)
  checkpoints.close()
