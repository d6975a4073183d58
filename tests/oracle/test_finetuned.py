"""A published encoder, made a classifier here and published again: transformers loads it and tells the same
classes.
"""

import json
import shutil

import jax
import numpy as np
import pytest

from tests.oracle import published
from tfm.commands import cli
from tfm.layers.lora import merge_adapters
from tfm.mixers.protocol import Context
from tfm.runs import load


pytestmark = pytest.mark.oracle
WORDS = [f'w{i}' for i in range(91)]


@pytest.fixture
def imported(root, tmp_path):
  """A run of the reference BERT, with a vocabulary of words."""
  found = root.parent / 'shared' / 'fixtures' / 'hf' / 'bert'
  if not found.is_dir():
    pytest.skip_rows('there are no reference models beside the repository')
  folder = tmp_path / 'published'
  shutil.copytree(found, folder)
  (folder / 'vocab.txt').write_text('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *WORDS]))
  (folder / 'special_tokens_map.json').write_text(json.dumps(dict(sep_token='[SEP]', mask_token='[MASK]')))
  assert cli.main(['import', f'--from={folder}', f'--workdir={tmp_path / "bert"}']) == 0
  return tmp_path / 'bert'


@pytest.mark.parametrize('adapted', [{}, {'lora.rank': 2}], ids=['full', 'lora'])
def test_a_classifier_goes_out(imported, tmp_path, adapted):
  transformers = pytest.importorskip('transformers')
  draw = np.random.default_rng(0)
  rows = [
    (i % 3, ' '.join(WORDS[30 * (i % 3) + j] for j in draw.integers(0, 30, 3 + i % 6))) for i in range(300)
  ]
  (tmp_path / 'rows.tsv').write_text(''.join(f'{"abc"[k]}\t{text}\n' for k, text in rows))
  fields = {
    'init_from': str(imported),
    'objective': 'classification(3)',
    'data.source': f"labelled('{tmp_path / 'rows.tsv'}')",
    'data.packing': 'each',
    'data.length': 16,
    'model.pooled_transform': 'tanh',
    'model.output_transform': '',
    'model.output_bias': False,
    'optimizer.warmup': 2,
    'training.steps': 6,
    'training.batch_size': 8,
    'training.evaluate_every': 6,
  } | adapted
  assert (
    cli.main(
      [
        'train',
        f'--config={imported / "config.json"}',
        f'--workdir={tmp_path / "tuned"}',
        *(f'--config.{path}={value}' for path, value in fields.items()),
      ]
    )
    == 0
  )
  assert cli.main(['export', f'--workdir={tmp_path / "tuned"}', f'--to={tmp_path / "out"}']) == 0

  ours = load.load(str(tmp_path / 'tuned'))
  ids = draw.integers(5, 96, (3, 12))
  mask = published.ROWS
  context = Context(np.broadcast_to(np.arange(12), ids.shape), mask)
  expected = jax.jit(ours.model.apply)({'params': merge_adapters(ours.params)}, ids, context)[0][
    'classification'
  ]
  theirs, report = transformers.BertForSequenceClassification.from_pretrained(
    tmp_path / 'out', output_loading_info=True
  )
  assert not report['missing_keys'] and not report['unexpected_keys']
  answer = published.run_hf_model(theirs.eval(), dict(input_ids=ids * mask, attention_mask=mask))
  published.assert_close(np.asarray(expected), answer)
  assert sorted(path.name for path in (tmp_path / 'out').iterdir()) == [
    'config.json',
    'model.safetensors',
    'special_tokens_map.json',
    'vocab.txt',
  ]
