"""The user's Arrow and Parquet files, such as a folder of Hugging Face `datasets`."""

import dataclasses
import functools
import glob
import itertools
import logging
import os
import pathlib
from collections.abc import Iterator

from tfm.data import split_files
from tfm.data.corpus import RawDocuments
from tfm.data.documents import SPLITS, Document
from tfm.data.sources import protocol
from tfm.errors import importing_extra, parsing, require


with importing_extra('arrow'):
  import pyarrow
  import pyarrow.parquet

ROWS = 256  # of a Parquet file that are read at once
FILE_MAGIC = b'ARROW1'  # the first bytes of Arrow's file format; its stream format has none
# Of a folder: as `save_to_disk` writes a DatasetDict and a Dataset, and as the Hub has Parquet files.
LAYOUTS = (
  '{split}/*.arrow',
  '*.arrow',
  'data/{split}-*.parquet',
  '{split}-*.parquet',
  '{split}/*.parquet',
  '{split}.parquet',
  '*.parquet',
)

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Arrow(protocol.StoredSource):
  """A text column of .arrow or .parquet files; every row is a document.

  The path is a folder, or a pattern of files, in which `{split}` stands for the name of a split as in `text`.
  A folder is what `save_to_disk` of Hugging Face `datasets` writes, or has Parquet files whose names begin
  with their split, as on the Hub: arrow("wikitext-2"). A split that a folder does not have is carved out of
  the training split, by the hash of the document. Files are read in parts, never whole.

  Attributes:
    path: a folder, or files, as in "data/{split}-*.parquet"; `~` is the home folder.
    column: the column with the text.
    splits: as in `text`.

  Raises:
    ValueError: from `prepare`, for no files, no such column of text, or a row without a text.
  """

  suffixes = folder_suffixes = '.arrow', '.parquet'

  path: str
  column: str = 'text'
  splits: tuple[str, ...] = SPLITS

  def raw_documents(self) -> RawDocuments:
    found = self._find_files()

    def read(split: str | None, path: pathlib.Path) -> Iterator[Document]:
      return ((split, text) for text in self._read(path))

    return RawDocuments(self.spec, [functools.partial(read, *one) for one in found], found.fixed)

  def _find_files(self) -> split_files.SplitFiles:
    """The files of each split, whose names are those that are present if the path is a folder."""
    folder = os.path.expanduser(self.path)
    if not os.path.isdir(folder):
      return split_files.find_split_files(self.spec, self.path, self.splits)
    known = {*self.splits, *itertools.chain(*split_files.USUAL_NAMES)}
    for layout in LAYOUTS:
      held = os.path.join(glob.escape(folder), layout)
      if (split_files.present_names(held) & known) if split_files.PLACEHOLDER in layout else glob.glob(held):
        break
    else:
      raise ValueError(f'{self.spec} is a folder without .arrow and .parquet files; give their path')
    if split_files.PLACEHOLDER not in held or tuple(self.splits) != SPLITS:
      return split_files.find_split_files(self.spec, held, self.splits)
    present = split_files.present_names(held)
    # Validation and test may be missing, but not have another name.
    names = [name if present & {*usual} else '' for name, usual in zip(SPLITS, split_files.USUAL_NAMES)]
    found = split_files.find_split_files(self.spec, held, ['train', *names[1:]])
    if unused := sorted(present - {*SPLITS}):
      _log.warning('%s: the splits %s are not used; splits=(…) uses others', self.spec, unused)
    return found

  def _read(self, path: pathlib.Path) -> Iterator[str]:
    """Yields the texts of a file."""
    count = 0
    with parsing(path, 'an Arrow or Parquet file'):
      try:
        schema, batches = _open_batches(path, self.column)
        columns = [field.name for field in schema if _is_text(field.type)]
        require(
          self.column in columns,
          f'{path} has no column {self.column!r} of text; it has {columns}, set column=…',
        )
        for batch in batches:
          texts = batch.column(self.column)
          for start in range(0, len(texts), ROWS):
            for text in texts.slice(start, ROWS).to_pylist():
              require(text is not None, f'{path} has no text in row {count} of {self.column!r}')
              yield text
              count += 1
      except OSError as error:  # what pyarrow raises for a file that ends too early
        raise ValueError(str(error)) from error


def _open_batches(path: pathlib.Path, column: str) -> tuple[pyarrow.Schema, Iterator[pyarrow.RecordBatch]]:
  """The schema of a file, and its rows in parts, which are read one after another."""
  if path.suffix == '.parquet':
    file = pyarrow.parquet.ParquetFile(path, memory_map=True)
    return file.schema_arrow, file.iter_batches(ROWS, columns=[column])
  require(
    path.suffix == '.arrow', f'{path} is not an .arrow or .parquet file; narrow the pattern or rename it'
  )
  mapped = pyarrow.memory_map(str(path))
  if mapped.read(len(FILE_MAGIC)) == FILE_MAGIC:
    file = pyarrow.ipc.open_file(mapped)
    return file.schema, (file.get_batch(i) for i in range(file.num_record_batches))
  mapped.seek(0)
  stream = pyarrow.ipc.open_stream(mapped)
  return stream.schema, iter(stream)


def _is_text(kind: pyarrow.DataType) -> bool:
  types = pyarrow.types
  kind = kind.value_type if types.is_dictionary(kind) else kind
  return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
