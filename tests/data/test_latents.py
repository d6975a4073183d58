"""Latents: read as they are, with their classes; what is no latent is refused."""

import numpy as np
import pytest

from tfm.data import pipeline
from tfm.data.packing.each import Each
from tfm.data.sources.latents import Latents


@pytest.fixture
def folder(tmp_path):
  draw = np.random.default_rng(0)
  for split, count in (('train', 6), ('validation', 3)):
    np.save(tmp_path / f'{split}.npy', draw.normal(size=(count, 4, 4, 3)).astype(np.float16))
    np.save(tmp_path / f'{split}_classes.npy', np.arange(count) * 2 % 12)
  return tmp_path


def test_rows_have_the_numbers_and_classes_of_the_files(folder, tmp_path):
  source = Latents(str(folder), 4, 3)
  data = pipeline.open_data(source, None, tmp_path / 'cache')
  rows = Each().evaluation_rows(data.tokens('train'), 16)
  stored, classes = np.load(folder / 'train.npy'), np.load(folder / 'train_classes.npy')
  assert len(rows) == 6 and data.tokens('train').names == tuple(map(str, range(11)))
  for i in range(6):
    np.testing.assert_array_equal(rows[i]['image'], stored[i].astype(np.float32))
    assert rows[i]['classes'] == classes[i] and rows[i]['image'].dtype == np.float32
  assert set(data.corpus.splits) == {'train', 'validation'}


def test_the_hash_is_of_the_content(folder, tmp_path):
  def read():
    return pipeline.open_data(Latents(str(folder), 4, 3), None, tmp_path / 'cache').corpus.hash

  before = read()
  assert read() == before
  np.save(folder / 'validation_classes.npy', np.array([0, 0, 1]))
  assert read() != before


@pytest.mark.parametrize(
  'change, sentence',
  [
    (lambda folder: (folder / 'validation.npy').unlink(), 'has no validation.npy; write it with numpy.save'),
    (
      lambda folder: np.save(folder / 'train.npy', np.zeros((6, 4, 4, 4))),
      r'train.npy has shape \(6, 4, 4, 4\) .* needs floats of shape \[N, 4, 4, 3\]',
    ),
    (
      lambda folder: np.save(folder / 'train.npy', np.zeros((6, 4, 4, 3), np.uint8)),
      'type uint8, and .* needs floats',
    ),
    (
      lambda folder: np.save(folder / 'train_classes.npy', np.zeros(5, int)),
      'needs an integer from 0 for each of the 6 arrays of train.npy',
    ),
    (
      lambda folder: (folder / 'train.npy').write_bytes(b'no array'),
      'cannot be read as an array of numpy.save',
    ),
  ],
)
def test_refusals(folder, tmp_path, change, sentence):
  change(folder)
  with pytest.raises(ValueError, match=sentence):
    pipeline.open_data(Latents(str(folder), 4, 3), None, tmp_path / 'cache')
