"""Golden texts: the resolved config and the parameters of every config, so that changes show as diffs.

`pytest tests/golden/test_golden.py --update-golden` rewrites them. Each config has a text without an argument
and one per argument that its header mentions (`configs/lm.py:demo`).
"""

import pathlib
import re

import jax
import pytest

from tests.paths import ROOT
from tfm.analysis import estimate
from tfm.commands import inspect
from tfm.config.assemble import Experiment
from tfm.config.load import load_config
from tfm.config.resolve import resolve_config
from tfm.models import parameter_table
from tfm.training import state as states


GOLDEN = ROOT / 'tests' / 'golden'
# For tokenizers whose vocabulary size depends on the text, which differs between machines.
VOCAB = 256


def golden_names() -> list[str]:
  """Lists every config with its documented arguments: `lm`, `lm:demo`, …"""
  names = []
  for path in sorted((ROOT / 'configs').glob('*.py')):
    documented = re.findall(rf'configs/{path.stem}\.py:([\w,.-]*\w)', path.read_text())
    names += [path.stem, *(f'{path.stem}:{arg}' for arg in dict.fromkeys(documented) if arg != 'smoke')]
  return names


def golden_path(name: str) -> pathlib.Path:
  return GOLDEN / f'{name.replace(":", ".")}.txt'


def golden_text(name: str) -> str:
  stem, colon, arg = name.partition(':')
  config = resolve_config(load_config(f'{ROOT}/configs/{stem}.py{colon}{arg}'))
  vocab = estimate.vocabulary_size_of(Experiment(config).tokenizer)
  vocab = VOCAB if vocab is None else vocab
  model = Experiment(config).build_model(vocab)
  boxed = jax.eval_shape(lambda key: states.init_params(model, key, 1, config.data.length), jax.random.key(0))
  parameters = ''.join(f'{row}\n' for row in parameter_table.rows(boxed))
  return f'{inspect.config_text(config)}\nvocabulary {vocab}\n{parameters}'


@pytest.mark.parametrize('name', golden_names())
def test_config_and_parameters_match_the_golden_text(name, request):
  if request.config.getoption('--update-golden'):
    golden_path(name).write_text(golden_text(name))
  assert golden_path(name).is_file(), f'{name} has no golden text; use --update-golden'
  assert golden_text(name) == golden_path(name).read_text(), (
    f'{name} changed; if intended, use --update-golden'
  )


def test_every_golden_text_has_a_config(request):
  stale = set(GOLDEN.glob('*.txt')) - {golden_path(name) for name in golden_names()}
  if request.config.getoption('--update-golden'):
    for path in stale:
      path.unlink()
  else:
    assert not stale, 'these golden texts have no config; use --update-golden to remove them'
