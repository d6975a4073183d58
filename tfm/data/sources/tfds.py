"""Any TFDS data set with a field of text, or two."""

import contextlib
import dataclasses
import logging
import pathlib
import sys
from collections.abc import Iterator

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
    data_dir: where TFDS keeps its data sets; by default, TFDS's own choice.
  """

  dataset: str
  field: str = 'text'
  target: str = ''
  data_dir: str | None = None

  @property
  def fields(self) -> tuple[str, ...]:
    return ('source', 'target') if self.target else ('text',)

  def prepare(self, cache_dir: pathlib.Path) -> corpus.Corpus:
    builder = self._builder()
    sizes = {split: info.num_examples for split, info in builder.info.splits.items()}
    if not sizes.get('train'):
      raise ValueError(f"{self.spec} has no 'train' split; it has {sorted(sizes)}")
    if unused := sorted(set(sizes) - set(corpus.SPLITS)):
      _log.warning('%s: the splits %s are not used; only train, validation and test are',
                   self.spec, unused)
    fixed = [split for split in corpus.SPLITS if sizes.get(split)]
    carved = set(corpus.SPLITS) - set(fixed)
    fixed = fixed[1:] if carved else fixed  # train gives up documents, so a hash decides on them

    def read() -> Iterator[corpus.Document]:
      for split in corpus.SPLITS:
        if sizes.get(split):
          source = builder.as_data_source(split)
          for index, example in enumerate(corpus.examples(source)):
            where = f'{split}[{index}]'
            yield split if split in fixed else None, *(self._text(example, field, where) for field in self._features)

    return corpus.prepare(self.spec, read, cache_dir, fixed, self.fields)

  @property
  def _features(self) -> tuple[str, ...]:
    return (self.field, self.target) if self.target else (self.field,)

  def _builder(self) -> tensorflow_datasets.core.DatasetBuilder:
    try:
      builder = tensorflow_datasets.builder(self.dataset, data_dir=self.data_dir)
      if builder.is_prepared():
        if (stored := builder.info.file_format.value) != 'array_record':
          raise ValueError(
            f'{self.spec} is stored as {stored}, but only array_record is read without TensorFlow; '
            "prepare it again with file_format='array_record' in another data_dir")
      else:
        with contextlib.redirect_stdout(sys.stderr):
          builder.download_and_prepare(file_format='array_record')
    except (DatasetNotFoundError, ImportError, OSError) as error:
      reason = (str(error).strip() or type(error).__name__).splitlines()[0]
      raise ValueError(f'{self.spec} cannot be prepared here: {reason}') from error
    texts = [name for name, feature in builder.info.features.items()
             if isinstance(feature, tensorflow_datasets.features.Text)]
    for field in self._features:
      if field not in texts:
        raise ValueError(f'{self.spec} has no text under {field!r}; it has {texts}')
    return builder

  def _text(self, example, field: str, where: str) -> str:
    try:
      return example[field].decode()
    except UnicodeDecodeError as error:
      raise ValueError(
        f'{self.spec} {where} is not UTF-8 (byte {error.start}: {error.reason})') from None
