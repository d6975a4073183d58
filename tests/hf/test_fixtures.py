"""Reference models of the published implementations, where they lie beside the project: their own numbers."""

import json
import shutil

import numpy as np
import pytest

import tfm
from tests.oracle import published
from tests.paths import SHARED
from tfm.hf import export


FOLDER = SHARED / 'fixtures' / 'hf'
ARGUMENTS = (
  'input_ids',
  'attention_mask',
  'token_type_ids',
  'decoder_input_ids',
  'pixel_values',
  'global_attention_mask',
)
NAMES = sorted(path.name for path in FOLDER.iterdir()) if FOLDER.is_dir() else []
COMMON = 'gpt2', 'llama', 'bert', 't5_v1_1', 'vit'  # what the others write, and there and back, is slow

pytestmark = pytest.mark.skipif(not NAMES, reason='the reference models, ../shared/fixtures/hf, are not here')


def cases(numbers):
  """(arguments, logits) of every case that has logits."""
  for case in ('main', 'gen', 'long'):
    if f'{case}.logits' in numbers:
      yield (
        {name: numbers[f'{case}.{name}'] for name in ARGUMENTS if f'{case}.{name}' in numbers},
        numbers[f'{case}.logits'],
      )


def opened(name, config, tmp_path):
  """The model of a folder with one of its two config.json."""
  for file in (FOLDER / name).glob('*.safetensors'):
    (tmp_path / file.name).symlink_to(file)
  shutil.copy(FOLDER / name / config, tmp_path / 'config.json')
  return tfm.from_pretrained(str(tmp_path))


def rest_slow(names):
  return [pytest.param(name, marks=[] if name in COMMON else [pytest.mark.slow]) for name in names]


@pytest.mark.parametrize(
  'name, config',
  [
    *((name, 'config.json') for name in NAMES),
    *(
      pytest.param(name, 'config_hub.json', marks=[] if name in COMMON else [pytest.mark.slow])
      for name in NAMES
    ),
  ],
)
def test_logits(name, config, tmp_path):
  model, numbers = opened(name, config, tmp_path), np.load(FOLDER / name / 'io.npz')
  found = list(cases(numbers))
  assert found
  for given, wanted in found:
    mask = None if 'decoder_input_ids' in given else given.get('attention_mask')
    published.assert_close(model.logits(**given), wanted, mask)


@pytest.mark.parametrize(
  'name',
  rest_slow(
    name
    for name in NAMES
    if (FOLDER / name / 'io.npz').exists() and 'greedy_ids' in np.load(FOLDER / name / 'io.npz')
  ),
)
def test_what_is_written(name, tmp_path):
  model, numbers = opened(name, 'config.json', tmp_path), np.load(FOLDER / name / 'io.npz')
  given = {name: numbers[f'gen.{name}'] for name in ('input_ids', 'attention_mask')}
  skip_rows = 1 if model.config.model.architecture == 'encoder_decoder' else given['input_ids'].shape[1]
  np.testing.assert_array_equal(
    model.generate(**given, max_new_tokens=16), numbers['greedy_ids'][:, skip_rows:]
  )
  eos = json.loads((FOLDER / name / 'meta.json').read_text())['beam_eos_token_id']
  for kind, end in (('beam', None), ('beam_eos', eos)):
    best = [one for row in model.search(**given, max_new_tokens=16, num_beams=4, eos_id=end) for one in row]
    np.testing.assert_allclose([one.score for one in best], numbers[f'{kind}_scores'], atol=1e-4)
    for one, wanted in zip(best, numbers[f'{kind}_ids'][:, skip_rows:]):
      np.testing.assert_array_equal(one.tokens, wanted[: len(one.tokens)])


@pytest.mark.parametrize('name', rest_slow(NAMES))
def test_there_and_back(name, tmp_path):
  """Our export holds the very tensors that were read, under their names, and says the same of the model."""
  from safetensors.numpy import load_file

  (tmp_path / 'in').mkdir()
  model = opened(name, 'config.json', tmp_path / 'in')
  export.to_pretrained(
    model.config,
    model.params,
    str(tmp_path / 'out'),
    model.family.model_type,
    model.vocab,
    model.ids,
    model.output,
  )
  before, after = (load_file(folder / 'model.safetensors') for folder in (FOLDER / name, tmp_path / 'out'))
  constants = dict(model.family.constants(model.config))  # which published classes leave out or not
  assert set(after) - set(constants) <= set(before) and set(constants) <= set(after)
  skips = published.count_skipped_rows(model)
  for tensor, values in after.items():
    before.setdefault(tensor, constants.get(tensor))
    skip_rows = skips.get(tensor, 0)
    np.testing.assert_allclose(
      values[skip_rows:], before[tensor][skip_rows:], rtol=1e-6, atol=1e-7, err_msg=tensor
    )
  again = tfm.from_pretrained(str(tmp_path / 'out'))
  given, _ = next(cases(np.load(FOLDER / name / 'io.npz')))
  np.testing.assert_allclose(again.logits(**given), model.logits(**given), atol=1e-6)
