"""Pathfinder: labels by an oracle that sees the pixels alone, distances that do not tell them, refusals."""

import random

import numpy as np
import pytest
from scipy import ndimage

from tfm.data import progress_bar
from tfm.data.documents import SPLITS
from tfm.data.sources.pathfinder import Pathfinder


COUNT = 60


@pytest.fixture(scope='module')
def examples():
  """(image, label) of random images with short paths."""
  task = Pathfinder(dashes=6)
  return [task.example(random.Random(i)) for i in range(COUNT)]


def find_discs(image):
  """The centres of the two brightest spots of 2 × 2 pixels."""
  brightness = ndimage.uniform_filter(image[:, :, 0].astype(float), 3)
  first = np.unravel_index(brightness.argmax(), brightness.shape)
  near = np.hypot(*(np.indices(brightness.shape) - np.array(first)[:, None, None])) < 4
  return first, np.unravel_index(np.where(near, 0, brightness).argmax(), brightness.shape)


def test_labels_are_what_the_pixels_say(examples):
  """Gaps are closed, so that a path is one piece: the discs belong to one just where they are joined."""
  right = 0
  for image, label in examples:
    upscaled = ndimage.zoom(image[:, :, 0].astype(float), 4, order=1)
    pieces, _ = ndimage.label(ndimage.gaussian_filter(upscaled, 2.0) > 22)
    one, other = (pieces[tuple(4 * np.array(disc) + 1)] for disc in find_discs(image))
    right += (one == other) == label
  assert right > 0.9 * COUNT


def test_the_distance_of_the_discs_does_not_tell_the_label(examples):
  distances = {
    label: [np.hypot(*np.subtract(*find_discs(image))) for image, of in examples if of == label]
    for label in (0, 1)
  }
  assert min(map(len, distances.values())) > COUNT / 4
  assert abs(np.mean(distances[0]) - np.mean(distances[1])) < 1


def test_how_long_drawing_takes_is_known_while_it_goes_on(make_source, tmp_path, monkeypatch):
  track, totals = progress_bar.track, []

  def recorded(items, description, total=None):
    if 'reading' in description:
      totals.append(total)
    return track(items, description, total)

  monkeypatch.setattr(progress_bar, 'track', recorded)
  source = make_source('pathfinder(size=24, dashes=3, examples=100)')
  source.prepare(tmp_path)
  assert totals == [len([*source.raw_documents().read()])] == [100]


def test_images_are_the_same_again_in_splits_with_both_labels(make_source, tmp_path):
  corpus = make_source('pathfinder(size=24, dashes=3, examples=200)').prepare(tmp_path)
  sizes = [len(corpus.splits[split]['image']) for split in SPLITS]
  assert sum(sizes) == 200 and min(sizes) > 2
  assert {*corpus.splits['train']['label']} == {'0', '1'}
  task = Pathfinder(24, 3)
  made = [task.example(random.Random(f'0 {i}'))[0].tobytes() for i in range(200)]
  stored = [image.tobytes() for split in SPLITS for image in corpus.splits[split]['image']]
  assert sorted(made) == sorted(stored) and len({*stored}) == 200
  assert corpus.splits['train']['image'][0].shape == make_source('pathfinder(size=24, dashes=3)').image_shape


@pytest.mark.parametrize(
  ('text', 'sentence'),
  [
    ('pathfinder(dashes=2)', 'dashes=2 must be at least 3'),
    ('pathfinder(size=16, dashes=14)', 'size=16 has no room for paths of dashes=14; use at least size=21'),
  ],
)
def test_impossible_images_are_rejected(make_source, text, sentence):
  with pytest.raises(ValueError, match=sentence):
    make_source(text)
