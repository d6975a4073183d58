"""The user's text files."""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator

from tfm.data import files, json_lines, split_files, splitting
from tfm.data.corpus import RawDocuments
from tfm.data.documents import SPLITS
from tfm.data.sources import protocol
from tfm.errors import require
from tfm.spec import Rate


@dataclasses.dataclass(frozen=True)
class Text(protocol.StoredSource):
  """The .txt and .jsonl files that match a pattern, plain or compressed (.gz, .zst).

  A .txt file is one document, and so is every line of a .jsonl file that is not blank. A compressed file with
  neither suffix before .gz or .zst is read as .txt.

  With `{split}` in the pattern each split has its own files: text("{split}.txt", splits=("train", "valid",
  "test")). A split that is not named is carved out of the training split, by the hash of the document.

  Attributes:
    pattern: files, as in "plays/*.txt"; `**` matches any folders, `~` is the home folder.
    field: the key of the text in the objects of .jsonl files.
    splits: how the files name the training, the validation and the test split, '' for one without files; at
      least the first.
    tail: the fraction of the characters, at the end of the files in order, that is the validation split; the
      rest is for training, and there is no test split. text("input.txt", tail=0.1) is the split of char-rnn
      and nanoGPT (Karpathy 2015, 2022). 0: documents are assigned by their hashes.
  """

  suffixes = '.txt', '.jsonl'

  pattern: str
  field: str = 'text'
  splits: tuple[str, ...] = SPLITS
  tail: Rate = 0.0

  def __post_init__(self):
    if self.tail and split_files.PLACEHOLDER in self.pattern:
      raise ValueError(
        f'tail={self.tail} takes the validation split from the end of the training files, and '
        f'{self.pattern!r} has files for each split; use one of them'
      )

  def raw_documents(self) -> RawDocuments:
    found = split_files.find_split_files(self.spec, self.pattern, self.splits)
    formats = {_format(path) for _, path in found}
    require(
      self.field == Text.field or '.jsonl' in formats,
      f'{self.spec}: field={self.field!r} is a key of .jsonl files, and all are .txt; leave it out. Files of '
      f'the splits are text("{split_files.PLACEHOLDER}.txt", splits=("train", "valid"))',
    )
    documents = found.documents(self.spec, self.fields, functools.partial(_read, field=self.field))
    if not self.tail:
      return documents
    read_splits = splitting.split_tail(documents.read, self.tail)
    return RawDocuments(self.spec, [read_splits], ('train', 'validation'))


def _read(path: pathlib.Path, field: str) -> Iterator[tuple[str]]:
  """Yields the text of each document of a file."""
  if _format(path) == '.jsonl':
    yield from json_lines.read_fields(path, (field,), 'set field=…')
  else:
    yield (files.decode(b''.join(files.read_chunks(path)), str(path)),)


def _format(path: pathlib.Path) -> str:
  compressed = path.suffix in ('.gz', '.zst')
  suffix = pathlib.Path(path.stem).suffix if compressed else path.suffix
  if suffix not in Text.suffixes and not (compressed and not suffix):
    raise ValueError(
      f'{path} is not a .txt or .jsonl file, plain or with .gz or .zst; narrow the pattern or rename it'
    )
  return suffix or '.txt'
