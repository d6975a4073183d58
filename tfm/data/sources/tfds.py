"""Any TFDS data set with a field of text, or two, or with a label."""

import dataclasses
import pathlib
from collections.abc import Iterator

import tensorflow_datasets

from tfm.data import corpus, tfds_sets
from tfm.data.sources import protocol


@dataclasses.dataclass(frozen=True)
class Tfds(protocol.Source):
  """A TFDS data set, prepared in array_record or to be prepared so.

  Its train, validation and test splits are kept; of these, what it lacks is carved out of train by
  the hash of the documents. Any other split is left out, with a warning.

  Attributes:
    dataset: as in TFDS: "name", "name/config", "name:1.0.0".
    field: the feature that holds the text; of pairs, the source.
    target: the feature that holds the target, as in tfds("wmt14_translate/de-en", "de", "en"); '': there
      are no pairs.
    label: the feature that holds the class of a text, by a name or a number, as in tfds("imdb_reviews",
      label="label"); '': there are no classes.
    data_dir: where TFDS keeps its data sets; by default, TFDS's own choice.
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
        f'target={self.target!r} makes pairs, which have no label={self.label!r}; leave one of them out'
      )

  def prepare(self, cache_dir: pathlib.Path) -> corpus.Corpus:
    builder = tfds_sets.prepare_builder(self.spec, self.dataset, self.data_dir)
    texts = [
      name
      for name, feature in builder.info.features.items()
      if isinstance(feature, tensorflow_datasets.features.Text)
    ]
    for field in self._features:
      if field not in texts:
        raise ValueError(f'{self.spec} has no text under {field!r}; it has {texts}')
    label = [tfds_sets.label_reader(self.spec, builder, self.label)] if self.label else []
    given = tfds_sets.used_splits(self.spec, builder)
    fixed = corpus.kept(given)

    def read() -> Iterator[corpus.Document]:
      for split in given:
        for index, example in enumerate(corpus.examples(builder.as_data_source(split))):
          found = (self._text(example, field, f'{split}[{index}]') for field in self._features)
          yield split if split in fixed else None, *found, *(tell(example) for tell in label)

    return corpus.prepare(self.spec, read, cache_dir, fixed, self.fields)

  @property
  def _features(self) -> tuple[str, ...]:
    return (self.field, self.target) if self.target else (self.field,)

  def _text(self, example, field: str, where: str) -> str:
    try:
      return example[field].decode()
    except UnicodeDecodeError as error:
      raise ValueError(f'{self.spec} {where} is not UTF-8 (byte {error.start}: {error.reason})') from None
