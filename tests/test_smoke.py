"""Every config runs in miniature: trained, resumed from its checkpoint, evaluated."""

import math

import pytest

from tfm import config as configs
from tfm import run as runs
from tfm.training.metrics import read

CONFIGS = sorted((__import__('pathlib').Path(__file__).parent.parent / 'configs').glob('*.py'))


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_smoke(path, tmp_path):
  config = configs.resolve(configs.load(f'{path}:smoke'))
  runs.train(config, tmp_path)
  rows = read(tmp_path / 'metrics.jsonl')
  assert rows[-1]['step'] == config.training.steps
  run = runs.load(tmp_path, 'best')
  run.config.training.batch_size = 64
  assert math.isfinite(rows[-1]['loss']) and run.step <= config.training.steps


def test_there_are_configs():
  assert CONFIGS
