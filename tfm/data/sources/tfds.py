"""Any TFDS data set with a field of text, or two, or with a label."""

import contextlib
import dataclasses
import logging
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping

import tensorflow_datasets
from tensorflow_datasets.core.registered import DatasetNotFoundError

from tfm.data import corpus
from tfm.data.sources import protocol

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Tfds(protocol.Source):
  """A TFDS data set, prepared in array_record or to be prepared so.

  Its train, validation and test splits are kept; of these, what it lacks is carved out of train by
  the hash of the documents. Any other split is left out, with a warning.

  Attributes:
    dataset: as in TFDS: "name", "name/config", "name:1.0.0".
    field: the feature that holds the text; of pairs, the source.
    target: the feature that holds the target, as in tfds("wmt14_translate/de-en", "de", "en"); '': there are no pairs.
    label: the feature that holds the class of a text, by a name or a number, as in tfds("imdb_reviews", label="label");
      '': there are no classes.
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
      raise ValueError(f'target={self.target!r} makes pairs, which have no label={self.label!r}; leave one of them out')

  def prepare(self, cache_dir: pathlib.Path) -> corpus.Corpus:
    builder = self._builder()
    sizes = {split: info.num_examples for split, info in builder.info.splits.items()}
    if not sizes.get('train'):
      raise ValueError(f"{self.spec} has no 'train' split; it has {sorted(sizes)}")
    if unused := sorted(set(sizes) - set(corpus.SPLITS)):
      _log.warning('%s: the splits %s are not used; only train, validation and test are',
                   self.spec, unused)
    fixed = corpus.kept([split for split, size in sizes.items() if size])
    label = [named(builder, self.label)] if self.label else []

    def read() -> Iterator[corpus.Document]:
      for split in corpus.SPLITS:
        if sizes.get(split):
          source = builder.as_data_source(split)
          for index, example in enumerate(corpus.examples(source)):
            where = f'{split}[{index}]'
            texts = (self._text(example, field, where) for field in self._features)
            yield split if split in fixed else None, *texts, *(tell(example) for tell in label)

    return corpus.prepare(self.spec, read, cache_dir, fixed, self.fields)

  @property
  def _features(self) -> tuple[str, ...]:
    return (self.field, self.target) if self.target else (self.field,)

  def _builder(self) -> tensorflow_datasets.core.DatasetBuilder:
    builder = prepared(self.spec, self.dataset, self.data_dir)
    texts = [name for name, feature in builder.info.features.items()
             if isinstance(feature, tensorflow_datasets.features.Text)]
    for field in self._features:
      if field not in texts:
        raise ValueError(f'{self.spec} has no text under {field!r}; it has {texts}')
    if self.label:
      check_label(self.spec, builder, self.label)
    return builder

  def _text(self, example, field: str, where: str) -> str:
    try:
      return example[field].decode()
    except UnicodeDecodeError as error:
      raise ValueError(
        f'{self.spec} {where} is not UTF-8 (byte {error.start}: {error.reason})') from None


def prepared(spec: str, dataset: str, data_dir: str | None) -> tensorflow_datasets.core.DatasetBuilder:
  """A TFDS data set that stands in array_record, or is put so there.

  Raises:
    ValueError: for the source `spec`, if there is no such set or it needs TensorFlow.
  """
  try:
    builder = tensorflow_datasets.builder(dataset, data_dir=data_dir)
    if builder.is_prepared():
      if (stored := builder.info.file_format.value) != 'array_record':
        raise ValueError(
          f'{spec} is stored as {stored}, but only array_record is read without TensorFlow; '
          "prepare it again with file_format='array_record' in another data_dir")
    else:
      with contextlib.redirect_stdout(sys.stderr):
        builder.download_and_prepare(file_format='array_record')
  except (DatasetNotFoundError, ImportError, OSError) as error:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise ValueError(f'{spec} cannot be prepared here: {reason}') from error
  return builder


def check_label(spec: str, builder: tensorflow_datasets.core.DatasetBuilder, field: str) -> None:
  """Refuses for the source `spec` a feature that is not one name or number."""
  single = [name for name, feature in builder.info.features.items() if feature.shape == ()]
  if field not in single:
    raise ValueError(f'{spec} has no label under {field!r}; it has {single}')


def named(builder: tensorflow_datasets.core.DatasetBuilder, field: str) -> Callable[[Mapping], str]:
  """example → its label: the name of a class where the data set has names, and else what stands there."""
  names = getattr(builder.info.features[field], 'names', None) or ()

  def tell(example):
    value = example[field]
    if isinstance(value, bytes):
      return value.decode()
    # Of test splits without labels TFDS says -1, which is no class.
    return names[value] if 0 <= value < len(names) else str(value)
  return tell
