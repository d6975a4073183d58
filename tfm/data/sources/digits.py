"""Handwritten digits that come with scikit-learn."""

import dataclasses
import pathlib

import numpy as np
import sklearn.datasets

from tfm.data import corpus
from tfm.data.sources import protocol


@dataclasses.dataclass(frozen=True)
class Digits(protocol.Source):
  """1,797 gray images of 8 × 8 pixels (Alpaydin & Kaynak 1998; the test part of UCI's Optical Recognition of
  Handwritten Digits), split by their hashes. Their 17 shades become 0 … 255.
  """

  fields = ('image', 'label')
  image_shape = (8, 8, 1)

  def prepare(self, cache_dir: pathlib.Path) -> corpus.Corpus:
    found = sklearn.datasets.load_digits()
    images = np.round(found.images * (255 / 16)).astype(np.uint8)[:, :, :, None]
    documents = [(None, image, str(label)) for image, label in zip(images, found.target)]
    return corpus.prepare(self.spec, lambda: documents, cache_dir, (), self.fields)
