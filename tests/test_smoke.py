"""Every config trains in its smoke size to its last step, and loads again."""

import math
import re

import jax
import pytest

from tests.paths import ROOT
from tfm.config.assemble import Experiment
from tfm.config.load import load_config
from tfm.config.resolve import resolve_config
from tfm.runs import load as runs
from tfm.runs.train import train
from tfm.training.metrics import read


BUILT_IN_SOURCES = 'stdlib', 'numbers', 'digits', "captions('digits'", 'copy', 'mix'
CONFIGS = sorted((ROOT / 'configs').glob('*.py'))
FAST = 'lm', 'bert'  # the others run in `make test-slow`; other tests train pairs


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  'path',
  [pytest.param(path, id=path.stem, marks=() if path.stem in FAST else pytest.mark.slow) for path in CONFIGS],
)
def test_smoke_run(path, tmp_path):
  config = load_config(f'{path}:smoke')
  if not config.data.source.startswith(BUILT_IN_SOURCES):
    # The config's data is not in the repository: a few lines, read as bytes, or digits take its place.
    fields = Experiment(config).source.fields
    (tmp_path / 'lines.txt').write_text(''.join(f'line {i}\tZeile {i}\n' for i in range(400)))
    substitute = f'{"parallel" if "source" in fields else "text"}({str(tmp_path / "lines.txt")!r})'
    config.data.update(source='digits' if 'image' in fields else substitute, tokenizer='bytes')
    if 'image' in fields:
      encodes = config.model.architecture == 'encoder'
      config.model.patch, config.data.length = 2, 17 if encodes else 16
      config.objective = config.objective.replace('(1000', '(10')
  config = resolve_config(config)
  train(config, tmp_path)
  rows = read(tmp_path / 'metrics.jsonl')
  assert rows[-1]['step'] == config.training.steps and math.isfinite(rows[-1]['loss'])
  page = (ROOT / 'docs/reference/metrics.md').read_text(encoding='utf-8')
  described = set(re.findall(r'`([\w/]+)`', page))
  names = {name for row in rows for name in row}
  undescribed = {name for name in names - described if re.sub('/.*', '/NAME', name) not in described}
  assert not undescribed, f'docs/reference/metrics.md lacks {sorted(undescribed)}'
  run = runs.load(tmp_path)
  assert run.step == config.training.steps and run.config == config
  assert all(
    bool(x.any()) for path, x in jax.tree_util.tree_leaves_with_path(run.params) if path[-1].key == 'kernel'
  )


def test_configs_are_found():
  assert CONFIGS
