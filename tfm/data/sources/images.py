"""Any TFDS data set of images with a label."""

import dataclasses
import pathlib
from collections.abc import Iterator

import tensorflow_datasets

from tfm.data import corpus, tfds_sets
from tfm.data import images as arrays
from tfm.data.sources import protocol


@dataclasses.dataclass(frozen=True)
class Images(protocol.Source):
  """A TFDS data set such as fashion_mnist, cifar10 or imagenet2012, prepared in array_record or to be
  prepared so: of every image its middle, as large a square as it has, in size × size pixels.

  Splits are as of `tfds`.

  Attributes:
    dataset: as in TFDS: "name", "name/config", "name:1.0.0".
    size: pixels a side; channels: 1 (gray) or 3.
    image, label: the features that hold the image and its class.
    data_dir: where TFDS keeps its data sets; by default, TFDS's own choice.
  """

  fields = ('image', 'label')

  dataset: str
  size: int
  channels: int = 3
  image: str = 'image'
  label: str = 'label'
  data_dir: str | None = None

  def __post_init__(self):
    arrays.check(self.size, self.channels)

  @property
  def image_shape(self):
    return self.size, self.size, self.channels

  def prepare(self, cache_dir: pathlib.Path) -> corpus.Corpus:
    builder = tfds_sets.prepare_builder(self.spec, self.dataset, self.data_dir)
    features = builder.info.features
    images = [
      name for name, feature in features.items() if isinstance(feature, tensorflow_datasets.features.Image)
    ]
    if self.image not in images:
      raise ValueError(f'{self.spec} has no image under {self.image!r}; it has {images}')
    tell = tfds_sets.label_reader(self.spec, builder, self.label)
    given = tfds_sets.used_splits(self.spec, builder)
    fixed = corpus.kept(given)
    # Its bytes, which Pillow reads: TFDS's own way is slower without OpenCV.
    raw = {self.image: tensorflow_datasets.decode.SkipDecoding()}

    def read() -> Iterator[corpus.Document]:
      for split in given:
        for index, example in enumerate(corpus.examples(builder.as_data_source(split, decoders=raw))):
          image = arrays.fitted(
            example[self.image], self.size, self.channels, f'{self.spec} {split}[{index}]'
          )
          yield split if split in fixed else None, image, tell(example)

    return corpus.prepare(self.spec, read, cache_dir, fixed, self.fields)
