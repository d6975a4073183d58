"""What is noted of a config that is valid."""

import pytest

from tests.config.configs import complete
from tfm.config.assemble import Experiment
from tfm.config.resolve import resolve_config
from tfm.config.validate import validate_training


@pytest.mark.parametrize('warmup, steps, noted', [(9, 10, 0), (10, 10, 1), (11, 10, 1), (1, 1, 0), (0, 1, 0)])
def test_a_warmup_as_long_as_the_run_is_noted(capsys, warmup, steps, noted):
  config = complete(optimizer=dict(warmup=warmup), training=dict(steps=steps))
  validate_training(Experiment(resolve_config(config)))
  note = f'note: config.optimizer.warmup={warmup} is not below config.training.steps={steps}: '
  assert ''.join(capsys.readouterr()).count(note) == noted
