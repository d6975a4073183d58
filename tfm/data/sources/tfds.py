"""Any TFDS data set of texts, of pairs of texts, or of labelled texts."""

import dataclasses
import functools
from collections.abc import Iterator

import tensorflow_datasets

from tfm.data import splitting, tfds_sets
from tfm.data.corpus import RawDocuments
from tfm.data.document_store import iterate_examples
from tfm.data.documents import Document
from tfm.data.sources import protocol


PART = 100_000  # examples that one worker reads


@dataclasses.dataclass(frozen=True)
class Tfds(protocol.StoredSource):
  """A TFDS data set, stored in array_record; prepared if necessary.

  Its train, validation and test splits are used; a missing one is carved out of train by the hash of the
  documents. Any other split is ignored, with a warning.

  Attributes:
    dataset: as in TFDS: "name", "name/config", "name:1.0.0".
    field: the feature with the text; of pairs, the source.
    target: the feature with the target, as in tfds("wmt14_translate/de-en", "de", "en"); '': the data are
      not pairs.
    label: the feature with the class of a text, a name or a number, as in tfds("imdb_reviews",
      label="label"); '': there are no classes.
    data_dir: the directory of TFDS data sets; None: TFDS's default.
  """

  dataset: str
  field: str = 'text'
  target: str = ''
  label: str = ''
  data_dir: str | None = None

  @property
  def fields(self) -> tuple[str, ...]:
    return ('source', 'target') if self.target else ('text', 'label') if self.label else ('text',)

  def __post_init__(self):
    if self.target and self.label:
      raise ValueError(
        f'target={self.target!r} defines pairs, which have no label={self.label!r}; leave one of them out'
      )

  def raw_documents(self) -> RawDocuments:
    builder = tfds_sets.prepare_builder(self.spec, self.dataset, self.data_dir)
    texts = [
      name
      for name, feature in builder.info.features.items()
      if isinstance(feature, tensorflow_datasets.features.Text)
    ]
    for field in self._features:
      if field not in texts:
        raise ValueError(f'{self.spec} has no text under {field!r}; it has {texts}')
    read_labels = [tfds_sets.label_reader(self.spec, builder, self.label)] if self.label else []
    splits = tfds_sets.used_splits(self.spec, builder)
    fixed = splitting.fixed_splits(splits)

    def read(split: str, first: int, stop: int) -> Iterator[Document]:
      examples = iterate_examples(builder.as_data_source(f'{split}[{first}:{stop}]'))
      for index, example in enumerate(examples, first):
        values = (self._text(example, field, f'{split}[{index}]') for field in self._features)
        labels = (read_label(example) for read_label in read_labels)
        yield split if split in fixed else None, *values, *labels

    sizes = {split: builder.info.splits[split].num_examples for split in splits}
    parts = [
      functools.partial(read, split, first, min(first + PART, size))
      for split, size in sizes.items()
      for first in range(0, size, PART)
    ]
    return RawDocuments(self.spec, parts, fixed, self.fields)

  @property
  def _features(self) -> tuple[str, ...]:
    return (self.field, self.target) if self.target else (self.field,)

  def _text(self, example, field: str, where: str) -> str:
    try:
      return example[field].decode()
    except UnicodeDecodeError as error:
      raise ValueError(f'{self.spec} {where} is not UTF-8 (byte {error.start}: {error.reason})') from None
