"""The source of TFDS sets, without TensorFlow."""

import collections

import numpy as np
import pytest
import tensorflow_datasets

from tests.data.test_sources import texts
from tfm.data.sources import tfds


class TinySet(tensorflow_datasets.core.GeneratorBasedBuilder):
  """Documents with a label, in the splits train, test and extra."""

  VERSION = tensorflow_datasets.core.Version('1.0.0')

  def _info(self):
    features = {
      'text': tensorflow_datasets.features.Text(),
      'label': tensorflow_datasets.features.Scalar(np.int64),
    }
    return tensorflow_datasets.core.DatasetInfo(
      builder=self, features=tensorflow_datasets.features.FeaturesDict(features)
    )

  def _split_generators(self, dl_manager):
    sizes = {'train': 300, 'test': 9, 'extra': 5}
    return {split: self._generate_examples(split, size) for split, size in sizes.items()}

  def _generate_examples(self, split, count):
    for index in range(count):
      yield index, {'text': f'{split} document {index} né', 'label': index}


@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
  return tmp_path_factory.mktemp('tfds')


def test_tfds_splits_are_used_and_the_missing_one_is_carved(tiny, cache_dir, make_source, caplog):
  source = f"tfds('tiny_set', data_dir='{tiny}')"
  corpus = make_source(source).prepare(cache_dir)
  assert set(corpus.splits['test']['text']) == {f'test document {i} né' for i in range(9)}
  rest = texts(corpus)['train'] + texts(corpus)['validation']
  assert rest == collections.Counter(f'train document {i} né' for i in range(300))
  assert 3 <= corpus.documents['validation'] <= 40
  assert "['extra']" in caplog.text and corpus.name == source
  assert make_source(source).prepare(cache_dir).hash == corpus.hash  # prepared, now read


def test_a_tfds_set_is_read_in_parts(tiny, cache_dir, make_source, monkeypatch):
  source = make_source(f"tfds('tiny_set', data_dir='{tiny}')")
  whole = source.raw_documents()
  monkeypatch.setattr(tfds, 'PART', 70)
  parts = source.raw_documents()
  assert (len(whole.readers), len(parts.readers)) == (2, 6)
  assert [*parts.read()] == [*whole.read()] and len([*parts.readers[4]()]) == 20


@pytest.mark.parametrize(
  'spec, message',
  (
    ("tfds('tiny_set', field='label', data_dir='{}')", ("'label'", "['text']")),
    ("tfds('no_such_set_at_all', data_dir='{}')", ('no_such_set_at_all',)),
  ),
)
def test_tfds_errors_name_the_field(spec, message, tiny, cache_dir, make_source):
  with pytest.raises(ValueError) as error:
    make_source(spec.format(tiny)).prepare(cache_dir)
  for words in message:
    assert words in str(error.value)


def test_tfds_rejects_data_that_needs_tensorflow(tmp_path, cache_dir, make_source):
  TinySet(data_dir=str(tmp_path), file_format='array_record').download_and_prepare()
  info = tmp_path / 'tiny_set' / '1.0.0' / 'dataset_info.json'
  info.write_text(info.read_text().replace('array_record', 'tfrecord'))
  with pytest.raises(ValueError, match='stored as tfrecord, but only array_record'):
    make_source(f"tfds('tiny_set', data_dir='{tmp_path}')").prepare(cache_dir)
