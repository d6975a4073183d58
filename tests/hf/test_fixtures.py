"""Compares our models with stored outputs of the published implementations, if the fixtures are available."""

import json
import shutil

import numpy as np
import pytest

import tfm
from tests.oracle import published
from tests.paths import SHARED
from tfm.decoding.beam import BeamSearch, Power
from tfm.hf import export


# The default of `transformers`, but for the number of beams.
BEAM_SEARCH = BeamSearch(4, Power(1.0), 'likely')
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
COMMON = 'gpt2', 'llama', 'bert', 't5_v1_1', 'vit'  # the others are slow

pytestmark = pytest.mark.skipif(not NAMES, reason='requires the reference models in ../shared/fixtures/hf')


def logit_cases(numbers):
  """Yields (arguments, logits) of every case with logits."""
  for case in ('main', 'gen', 'long'):
    if f'{case}.logits' in numbers:
      yield (
        {name: numbers[f'{case}.{name}'] for name in ARGUMENTS if f'{case}.{name}' in numbers},
        numbers[f'{case}.logits'],
      )


def load_fixture(name, config, tmp_path):
  """The model of a fixture with one of its two config.json."""
  for file in (FOLDER / name).glob('*.safetensors'):
    (tmp_path / file.name).symlink_to(file)
  shutil.copy(FOLDER / name / config, tmp_path / 'config.json')
  return tfm.from_pretrained(str(tmp_path))


def mark_rest_slow(names):
  return [pytest.param(name, marks=[] if name in COMMON else [pytest.mark.slow]) for name in names]


@pytest.mark.sampled(3)
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
def test_logits_equal_the_published_ones(name, config, tmp_path):
  model, numbers = load_fixture(name, config, tmp_path), np.load(FOLDER / name / 'io.npz')
  cases = list(logit_cases(numbers))
  assert cases
  for arguments, expected in cases:
    mask = None if 'decoder_input_ids' in arguments else arguments.get('attention_mask')
    published.assert_close(model.logits(**arguments), expected, mask)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  'name',
  mark_rest_slow(
    name
    for name in NAMES
    if (FOLDER / name / 'io.npz').exists() and 'greedy_ids' in np.load(FOLDER / name / 'io.npz')
  ),
)
def test_greedy_and_beam_search_equal_the_published_ones(name, tmp_path):
  model, numbers = load_fixture(name, 'config.json', tmp_path), np.load(FOLDER / name / 'io.npz')
  arguments = {name: numbers[f'gen.{name}'] for name in ('input_ids', 'attention_mask')}
  start = 1 if model.config.model.architecture == 'encoder_decoder' else arguments['input_ids'].shape[1]
  np.testing.assert_array_equal(
    model.generate(**arguments, max_new_tokens=16), numbers['greedy_ids'][:, start:]
  )
  eos = json.loads((FOLDER / name / 'meta.json').read_text())['beam_eos_token_id']
  for kind, end in (('beam', None), ('beam_eos', eos)):
    best = [
      one
      for row in model.search(**arguments, max_new_tokens=16, settings=BEAM_SEARCH, eos_id=end)
      for one in row
    ]
    np.testing.assert_allclose([one.score for one in best], numbers[f'{kind}_scores'], atol=1e-4)
    for one, expected in zip(best, numbers[f'{kind}_ids'][:, start:]):
      np.testing.assert_array_equal(one.tokens, expected[: len(one.tokens)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize('name', mark_rest_slow(NAMES))
def test_export_writes_the_tensors_that_were_imported(name, tmp_path):
  """The same tensors under the same names, and a config.json of the same model."""
  from safetensors.numpy import load_file

  (tmp_path / 'in').mkdir()
  model = load_fixture(name, 'config.json', tmp_path / 'in')
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
  constants = dict(model.family.constants(model.config))  # published classes may omit these
  assert set(after) - set(constants) <= set(before) and set(constants) <= set(after)
  skip_rows = published.count_skipped_rows(model)
  for tensor, values in after.items():
    before.setdefault(tensor, constants.get(tensor))
    start = skip_rows.get(tensor, 0)
    np.testing.assert_allclose(values[start:], before[tensor][start:], rtol=1e-6, atol=1e-7, err_msg=tensor)
  again = tfm.from_pretrained(str(tmp_path / 'out'))
  arguments, _ = next(logit_cases(np.load(FOLDER / name / 'io.npz')))
  np.testing.assert_allclose(again.logits(**arguments), model.logits(**arguments), atol=1e-6)
