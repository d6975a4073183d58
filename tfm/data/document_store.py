"""Documents on disk: a TFDS data set in array_record, which is read without TensorFlow."""

import collections
import contextlib
import io
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow_datasets as tfds
from tensorflow_datasets.core.hashing import Hasher

from tfm.data import images, progress_bar
from tfm.data.documents import IMAGE, SPLITS, Field, SplitDocument, Survey, changed_error, digest


READ_SIZE = 256  # documents that are read at once


class Documents(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """A TFDS data set of documents in splits."""

  name = 'documents'
  VERSION = tfds.core.Version('1.0.0')
  url_infos = {}  # nothing is downloaded

  def __init__(
    self,
    documents: Callable[[], Iterator[SplitDocument]],
    splits: Sequence[str],
    fields: tuple[str, ...],
    **kwargs,
  ):
    self._documents, self._splits, self._fields = documents, splits, fields
    self.written = Survey()
    super().__init__(file_format='array_record', **kwargs)

  def _info(self):
    features = {
      field: tfds.features.Image(encoding_format='png') if field == IMAGE else tfds.features.Text()
      for field in self._fields
    }
    return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

  def _split_generators(self, dl_manager):
    return {split: self._generate_examples(split) for split in self._splits}

  def _generate_examples(self, split):
    counts = collections.Counter()
    for document_split, *fields in self._documents():
      if document_split == split:
        self.written.add(split, *fields)
        content = digest(*fields)
        counts[content] += 1
        # TFDS orders the documents by their keys: by content, not by file.
        values = (x if isinstance(x, str) else images.encode_png(x) for x in fields)
        yield document_key(content, counts[content]), dict(zip(self._fields, values, strict=True))


class FieldColumn(Sequence):
  """Random access to one field of all documents of a TFDS data source."""

  def __init__(self, source, field: str):
    self._source, self._field = source, field
    self._decode = images.decode_png if field == IMAGE else bytes.decode

  def __len__(self):
    return len(self._source)

  def __getitem__(self, index: int) -> Field:
    if not -len(self) <= index < len(self):
      raise IndexError(index)
    return self._decode(self._source[index % len(self)][self._field])

  def __iter__(self) -> Iterator[Field]:
    return self.iterate(0, len(self))

  def iterate(self, first: int, stop: int) -> Iterator[Field]:
    """Yields the values first … stop - 1."""
    examples = iterate_examples(self._source, first, stop)
    return (self._decode(example[self._field]) for example in examples)


def iterate_examples(source, first: int = 0, stop: int | None = None) -> Iterator[Mapping]:
  """Yields examples first … stop - 1 of a TFDS data source, by default all; reads many at once, which is far
  faster than one by one.
  """
  stop = len(source) if stop is None else stop
  for start in range(first, stop, READ_SIZE):
    yield from source.__getitems__(range(start, min(start + READ_SIZE, stop)))


def document_key(content: bytes, number: int) -> str:
  """Returns the key of a document: the digest of its fields, and 1, 2, … for each copy in a split."""
  return f'{content.hex()}-{number}'


def order_hash(split: str, key: str) -> int:
  """Returns the hash of a document's key, in [0, 2**128): TFDS orders the documents of a split by it."""
  return Hasher(split).hash_key(key)


def write_documents(
  directory: pathlib.Path,
  name: str,
  documents: Callable[[], Iterator[SplitDocument]],
  survey: Survey,
  fields: tuple[str, ...],
) -> None:
  """Writes documents as a TFDS data set.

  Raises:
    ValueError: if they are not those of the survey.
  """

  def track_documents():
    return progress_bar.track(documents(), f'writing {name}', survey.documents.total())

  builder = Documents(track_documents, sorted(survey.documents), fields, data_dir=str(directory))
  active = tfds.core.utils.tqdm_utils._active
  tfds.disable_progress_bar()
  try:
    with contextlib.redirect_stdout(io.StringIO()):  # TFDS prints about downloads, and there are none
      builder.download_and_prepare()
  finally:
    tfds.core.utils.tqdm_utils.display_progress_bar(active)
  if builder.written.hash != survey.hash:
    raise changed_error(name)


def read_documents(directory: pathlib.Path, fields: tuple[str, ...]) -> dict[str, dict[str, FieldColumn]]:
  """Returns random access to what `write_documents` wrote, by split and field."""
  stored = tfds.builder_from_directory(directory / Documents.name / str(Documents.VERSION))
  raw = {field: tfds.decode.SkipDecoding() for field in fields if field == IMAGE}
  sources = {
    split: stored.as_data_source(split, decoders=raw or None)
    for split in SPLITS
    if split in stored.info.splits
  }
  return {split: {field: FieldColumn(source, field) for field in fields} for split, source in sources.items()}
