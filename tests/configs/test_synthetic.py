"""configs/synthetic.py: every task is valid, and its longest texts fill the rows."""

import importlib.util
import math

import pytest

from tests.paths import ROOT
from tfm.config.assemble import Experiment
from tfm.config.load import load_config
from tfm.config.resolve import resolve_config
from tfm.config.validate import validate_run


PATH = ROOT / 'configs' / 'synthetic.py'
_spec = importlib.util.spec_from_file_location('synthetic', PATH)
synthetic = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(synthetic)


@pytest.mark.parametrize('name', synthetic.TASKS)
def test_a_task_is_valid_and_fills_its_rows(name):
  config = resolve_config(load_config(f'{PATH}:{name}'))
  validate_run(Experiment(config), 1)
  Experiment(config).build_model(300)
  source = Experiment(config).source
  if source.image_shape:
    assert config.data.length == math.prod(source.image_shape) + 1
    return
  texts = [source._document('test', i)[0] for i in range(20 if name == 'listops' else 400)]
  # Plus the end token, or the class token in classification.
  lengths = [(len(text.split(' ')) if config.data.tokenizer == 'words' else len(text)) + 1 for text in texts]
  assert max(lengths) <= config.data.length
  assert name in ('listops', 'regbench') or max(lengths) > config.data.length - 12


def test_an_unknown_task_is_rejected():
  with pytest.raises(ValueError, match="synthetic.py has no 'count'; known: copy, .*listops"):
    load_config(f'{PATH}:count')
