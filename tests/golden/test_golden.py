"""Golden text: what every config resolves to and what its model learns, so that a refactor shows as a diff.

`pytest tests/golden/test_golden.py --update-golden` rewrites it. A config is kept as it stands and with every
argument that its header's commands name (`configs/lm.py:demo`).
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
from tfm.models import table
from tfm.training import state as states


GOLDEN = ROOT / 'tests' / 'golden'
# Where only the text tells the vocabulary: the text is not the same everywhere.
VOCAB = 256


def names() -> list[str]:
  """`lm`, `lm:demo`, …"""
  found = []
  for path in sorted((ROOT / 'configs').glob('*.py')):
    documented = re.findall(rf'configs/{path.stem}\.py:([\w,.-]*\w)', path.read_text())
    found += [path.stem, *(f'{path.stem}:{arg}' for arg in dict.fromkeys(documented) if arg != 'smoke')]
  return found


def file(name: str) -> pathlib.Path:
  return GOLDEN / f'{name.replace(":", ".")}.txt'


def text(name: str) -> str:
  stem, colon, arg = name.partition(':')
  config = resolve_config(load_config(f'{ROOT}/configs/{stem}.py{colon}{arg}'))
  vocab = estimate.vocabulary_size_of(Experiment(config).tokenizer)
  vocab = VOCAB if vocab is None else vocab
  model = Experiment(config).build_model(vocab)
  boxed = jax.eval_shape(lambda key: states.init_params(model, key, 1, config.data.length), jax.random.key(0))
  parameters = ''.join(f'{row}\n' for row in table.rows(boxed))
  return f'{inspect.config_text(config)}\nvocabulary {vocab}\n{parameters}'


@pytest.mark.parametrize('name', names())
def test_golden(name, request):
  if request.config.getoption('--update-golden'):
    file(name).write_text(text(name))
  assert file(name).is_file(), f'no golden text of {name}; --update-golden writes it'
  assert text(name) == file(name).read_text(), f'{name} is not what it was; if so meant, --update-golden'


def test_no_golden_text_without_its_config(request):
  stale = set(GOLDEN.glob('*.txt')) - {file(name) for name in names()}
  if request.config.getoption('--update-golden'):
    for path in stale:
      path.unlink()
  else:
    assert not stale, 'the configs of these are gone; --update-golden removes them'
