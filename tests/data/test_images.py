"""Images: stored without loss, split by their content, with their classes; augmented in training only."""

import io

import numpy as np
import pytest
import sklearn.datasets
import tensorflow_datasets
from PIL import Image

from tfm import spec
from tfm.data import packing, pipeline
from tfm.data.packing import protocol


SPLITS = ('train', 'validation', 'test')


def open_image_data(source, cache_dir):
  return pipeline.open_data(source, None, cache_dir)


def build(text):
  return spec.build(text, packing, protocol.Packing)


def random_image(seed, size=6, channels=3):
  return np.random.default_rng(seed).integers(0, 256, (size, size, channels), dtype=np.uint8)


def save(path, image):
  path.parent.mkdir(parents=True, exist_ok=True)
  Image.fromarray(image.squeeze()).save(path)


@pytest.fixture(scope='module')
def digits(tmp_path_factory, make_source):
  return open_image_data(make_source('digits'), tmp_path_factory.mktemp('digits'))


def test_digits_are_those_of_scikit_learn(digits, make_source):
  results = sklearn.datasets.load_digits()
  expected = sorted(
    (np.round(image * 255 / 16).astype(np.uint8).tobytes(), str(label))
    for image, label in zip(results.images, results.target)
  )
  actual = [
    (image.tobytes(), label)
    for split in SPLITS
    for image, label in zip(*(digits.corpus.splits[split][field] for field in ('image', 'label')))
  ]
  assert sorted(actual) == expected
  assert make_source('digits').image_shape == digits.corpus.splits['test']['image'][0].shape == (8, 8, 1)
  assert all(50 < digits.corpus.documents[split] < 150 for split in SPLITS[1:])
  assert 'images: 8 × 8 × 1, digits, content hash' in str(digits)


def test_classes_are_those_of_the_labels(digits):
  tokens = digits.tokens('validation')
  assert tokens.names == tuple('0123456789')
  labels = digits.corpus.splits['validation']['label']
  assert [tokens.names[i] for i in tokens.classes] == list(labels)


def test_a_row_is_an_image(digits):
  tokens = digits.tokens('validation')
  rows = build('each(flip=True, crop=1)').evaluation_rows(tokens, 17)
  assert len(rows) == tokens.documents
  for i, row in zip(range(9), rows):
    np.testing.assert_allclose(row['image'], tokens.images[i] / 127.5 - 1, atol=1e-6)
    assert row['image'].dtype == np.float32 and row['classes'] == tokens.classes[i]
    np.testing.assert_array_equal(row['positions'], np.arange(17))
    np.testing.assert_array_equal(row['segments'], np.ones(17))
    assert row['positions'].dtype == row['segments'].dtype == np.int32


def test_training_reads_every_image_once_an_epoch(digits):
  tokens = digits.tokens('validation')
  rows, n = build('each').rows(tokens, 17, seed=1), tokens.documents
  epochs = [[rows[e * n + i]['image'].tobytes() for i in range(n)] for e in range(2)]
  assert sorted(epochs[0]) == sorted(epochs[1]) and epochs[0] != epochs[1]


def test_training_augments_images(digits):
  """As an independent implementation of He et al.: every shift, mirrored or not, and deterministic by
  index.
  """
  tokens, crop = digits.tokens('validation'), 1
  plain, rows, again = (
    build(text).rows(tokens, 17, seed=1) for text in ('each', *['each(flip=True, crop=1)'] * 2)
  )
  observed = set()
  for i in range(200):
    image, varied = (((x[i]['image'] + 1) * 127.5).round().astype(np.uint8)[:, :, 0] for x in (plain, rows))
    np.testing.assert_array_equal(rows[i]['image'], again[i]['image'])
    assert rows[i]['image'].shape == (8, 8, 1)
    options = {}
    for mirrored in (False, True):
      padded = np.zeros((10, 10), np.uint8)
      padded[1:9, 1:9] = image[:, ::-1] if mirrored else image
      options |= {
        padded[y : y + 8, x : x + 8].tobytes(): (mirrored, y, x) for y in range(3) for x in range(3)
      }
    observed.add(options[varied.tobytes()])
  assert len(observed) == 2 * (2 * crop + 1) ** 2


def test_padding_rows_have_no_class(digits):
  tokens = digits.tokens('test')
  [batch] = pipeline.evaluation_batches(build('each').evaluation_rows(tokens, 17), tokens.documents + 2)
  assert batch['image'].shape == (tokens.documents + 2, 8, 8, 1)
  assert (
    (batch['classes'][-2:] == -1).all()
    and not batch['segments'][-2:].any()
    and (batch['classes'][:-2] >= 0).all()
  )


@pytest.mark.parametrize('parts', [False, True])
def test_a_folder_for_each_class(tmp_path, make_source, parts):
  """In the folders of splits, or without."""
  for i in range(120):
    split = SPLITS[i % 3] if parts else ''
    save(tmp_path / 'in' / split / ('cat', 'train')[i % 2] / f'{i}.png', random_image(i))
  data = open_image_data(make_source(f"folder('{tmp_path}/in', size=6)"), tmp_path)
  results = {
    image.tobytes(): (split, label)
    for split in SPLITS
    for image, label in zip(*(data.corpus.splits[split][field] for field in ('image', 'label')))
  }
  for i in range(120):
    split, label = results[random_image(i).tobytes()]
    assert label == ('cat', 'train')[i % 2] and (not parts or split == SPLITS[i % 3])
  assert len(results) == 120


def test_images_are_cropped_and_scaled_to_one_size(tmp_path, make_source):
  wide = np.concatenate(
    [np.full((8, 4, 3), 9, np.uint8), np.full((8, 8, 3), 200, np.uint8), np.full((8, 4, 3), 9, np.uint8)], 1
  )
  for split in SPLITS:
    save(tmp_path / 'in' / split / 'a' / 'wide.png', wide)
  source = make_source(f"folder('{tmp_path}/in', 4, channels=1)")
  [image] = source.prepare(tmp_path).splits['test']['image']
  assert source.image_shape == image.shape == (4, 4, 1) and image.min() > 150


def test_errors_name_the_file(tmp_path, make_source):
  (tmp_path / 'in' / 'a').mkdir(parents=True)
  with pytest.raises(ValueError, match='in has no images; put'):
    make_source(f"folder('{tmp_path}/in', 4)").prepare(tmp_path)
  (tmp_path / 'in' / 'a' / 'x.png').write_bytes(b'no image')
  with pytest.raises(ValueError, match=r'in/a/x.png cannot be read as an image: '):
    make_source(f"folder('{tmp_path}/in', 4)").prepare(tmp_path)
  for text, sentence in (
    ("folder('a', 0)", 'size=0 must be'),
    ("images('a', 4, channels=2)", r'channels=2 must be 1 \(gray\)'),
  ):
    with pytest.raises(ValueError, match=sentence):
      make_source(text)
  with pytest.raises(ValueError, match=r'crop=-1 must be at least 0'):
    build('each(crop=-1)')


class Shapes(tensorflow_datasets.core.GeneratorBasedBuilder):
  """Photographs, as ImageNet has them: JPEG or PNG, of any size."""

  VERSION = tensorflow_datasets.core.Version('1.0.0')

  def _info(self):
    features = tensorflow_datasets.features
    return tensorflow_datasets.core.DatasetInfo(
      builder=self,
      features=features.FeaturesDict(
        dict(image=features.Image(encoding_format='png'), label=features.ClassLabel(names=['disc', 'ring']))
      ),
    )

  def _split_generators(self, dl_manager):
    return {split: self._generate_examples(n) for split, n in dict(train=150, validation=5).items()}

  def _generate_examples(self, count):
    for i in range(count):
      file = io.BytesIO()
      Image.fromarray(random_image(1000 * count + i, size=5 + i % 2)).save(file, 'png')
      file.seek(0)
      yield i, dict(image=file, label=i % 2)


def test_a_tfds_data_set(tmp_path, make_source):
  data = open_image_data(make_source(f"images('shapes', 5, data_dir='{tmp_path}')"), tmp_path / 'cache')
  assert data.corpus.documents['validation'] == 5 and data.tokens('train').names == ('disc', 'ring')
  results = {image.tobytes() for image in data.corpus.splits['validation']['image']}
  assert {random_image(5000 + i, size=5).tobytes() for i in (0, 2, 4)} < results
  with pytest.raises(ValueError, match="has no image under 'label'; it has .'image'."):
    make_source(f"images('shapes', 5, image='label', data_dir='{tmp_path}')").prepare(tmp_path / 'cache')


def test_the_shape_source_has_no_data(tmp_path, make_source):
  source = make_source('shape(8, 12, 1)')
  assert source.image_shape == (8, 12, 1)
  with pytest.raises(
    ValueError, match=r"shape\(8, 12, channels=1\) defines only the shape of images .*'folder"
  ):
    source.prepare(tmp_path)
  with pytest.raises(ValueError, match='width=0 must be at least 1'):
    make_source('shape(8, 0)')
