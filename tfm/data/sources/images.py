"""Any TFDS data set of labelled images."""

import dataclasses
from collections.abc import Iterator

import tensorflow_datasets

from tfm.data import images, splitting, tfds_sets
from tfm.data.corpus import RawDocuments
from tfm.data.document_store import iterate_examples
from tfm.data.documents import Document
from tfm.data.sources import protocol
from tfm.spec import Size


@dataclasses.dataclass(frozen=True)
class Images(protocol.StoredSource):
  """A TFDS data set such as fashion_mnist, cifar10 or imagenet2012, stored in array_record; prepared if
  necessary.

  The largest centered square of every image is scaled to size × size pixels. Splits are as in `tfds`.

  Attributes:
    dataset: as in TFDS: "name", "name/config", "name:1.0.0".
    size: pixels per side; channels: 1 (gray) or 3.
    image, label: the features with the image and its class.
    data_dir: the directory of TFDS data sets; None: TFDS's default.
  """

  fields = ('image', 'label')

  dataset: str
  size: Size
  channels: Size = 3
  image: str = 'image'
  label: str = 'label'
  data_dir: str | None = None

  def __post_init__(self):
    images.validate_size(self.size, self.channels)

  @property
  def image_shape(self):
    return self.size, self.size, self.channels

  def raw_documents(self) -> RawDocuments:
    builder = tfds_sets.prepare_builder(self.spec, self.dataset, self.data_dir)
    features = builder.info.features
    image_features = [
      name for name, feature in features.items() if isinstance(feature, tensorflow_datasets.features.Image)
    ]
    if self.image not in image_features:
      raise ValueError(f'{self.spec} has no image under {self.image!r}; it has {image_features}')
    read_label = tfds_sets.label_reader(self.spec, builder, self.label)
    splits = tfds_sets.used_splits(self.spec, builder)
    fixed = splitting.fixed_splits(splits)
    # The encoded image, which Pillow decodes: TFDS's decoder is slower without OpenCV.
    raw = {self.image: tensorflow_datasets.decode.SkipDecoding()}

    def read() -> Iterator[Document]:
      for split in splits:
        for index, example in enumerate(iterate_examples(builder.as_data_source(split, decoders=raw))):
          where = f'{self.spec} {split}[{index}]'
          image = images.load_square(example[self.image], self.size, self.channels, where)
          yield split if split in fixed else None, image, read_label(example)

    return RawDocuments(self.spec, [read], fixed, self.fields)
