"""The handwritten digits of scikit-learn."""

import dataclasses

import numpy as np

from tfm.data.corpus import RawDocuments
from tfm.data.sources import protocol
from tfm.errors import importing_extra


with importing_extra('images'):
  import sklearn.datasets


@dataclasses.dataclass(frozen=True)
class Digits(protocol.StoredSource):
  """1,797 gray images of 8 × 8 pixels (Alpaydin & Kaynak 1998; the test part of UCI's Optical Recognition of
  Handwritten Digits), split by their hashes. The 17 gray levels are scaled to 0 … 255.
  """

  fields = ('image', 'label')
  image_shape = (8, 8, 1)

  def raw_documents(self) -> RawDocuments:
    digits = sklearn.datasets.load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)[:, :, :, None]
    documents = [(None, image, str(label)) for image, label in zip(images, digits.target)]
    return RawDocuments(self.spec, [lambda: documents], (), self.fields)
