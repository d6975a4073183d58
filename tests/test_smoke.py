"""Every config runs in miniature: trained to its last step, and read back."""

import math

import jax
import pytest

from tests.paths import ROOT
from tfm.config import assemble
from tfm.config.load import load_config
from tfm.config.resolve import resolve_config
from tfm.runs import load as runs
from tfm.runs.train import train
from tfm.training.metrics import read


HERE = 'stdlib', 'numbers', 'digits', 'copy'
CONFIGS = sorted((ROOT / 'configs').glob('*.py'))
FIRST = 'lm', 'bert'  # the others wait for `make test-slow`; other tests train pairs


@pytest.mark.parametrize(
  'path',
  [
    pytest.param(path, id=path.stem, marks=() if path.stem in FIRST else pytest.mark.slow) for path in CONFIGS
  ],
)
def test_smoke(path, tmp_path):
  config = load_config(f'{path}:smoke')
  if not config.data.source.startswith(HERE):
    # Data that does not come along: a few lines stand for it, by a tokenizer that is content with few; or digits.
    fields = assemble.source(config).fields
    (tmp_path / 'lines.txt').write_text(''.join(f'line {i}\tZeile {i}\n' for i in range(400)))
    stand_in = f'{"parallel" if "source" in fields else "text"}({str(tmp_path / "lines.txt")!r})'
    config.data.update(source='digits' if 'image' in fields else stand_in, tokenizer='bytes')
    if 'image' in fields:
      config.model.patch, config.data.length, config.objective = 2, 17, 'classification(10)'
  config = resolve_config(config)
  train(config, tmp_path)
  rows = read(tmp_path / 'metrics.jsonl')
  assert rows[-1]['step'] == config.training.steps and math.isfinite(rows[-1]['loss'])
  run = runs.load(tmp_path)
  assert run.step == config.training.steps and run.config == config
  assert all(
    bool(x.any()) for path, x in jax.tree_util.tree_leaves_with_path(run.params) if path[-1].key == 'kernel'
  )


def test_there_are_configs():
  assert CONFIGS
