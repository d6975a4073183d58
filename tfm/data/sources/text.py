"""The user's text files."""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Iterator

from tfm.data import files
from tfm.data.corpus import Corpus, prepare_corpus
from tfm.data.documents import Document
from tfm.data.sources import protocol


@dataclasses.dataclass(frozen=True)
class Text(protocol.Source):
  """The .txt and .jsonl files that match a pattern, plain or compressed (.gz, .zst).

  A .txt file is one document, and so is every line of a .jsonl file that is not blank. A compressed file with
  neither suffix before .gz or .zst is read as .txt.

  Attributes:
    pattern: files, as in "plays/*.txt"; `**` matches any folders, `~` is the home folder.
    field: the key of the text in the objects of .jsonl files.
  """

  pattern: str
  field: str = 'text'

  def prepare(self, cache_dir: pathlib.Path) -> Corpus:
    paths = files.find_files(self.pattern)
    if not paths:
      raise ValueError(f'{self.spec} matches no file; give the path of .txt or .jsonl files')
    readers = [(path, _format(path)) for path in paths]

    def read() -> Iterator[Document]:
      for path, suffix in readers:
        chunks = files.read_chunks(path)
        texts = _read_jsonl(chunks, path, self.field) if suffix == '.jsonl' else _read_text(chunks, path)
        for text in texts:
          yield None, text

    return prepare_corpus(self.spec, read, cache_dir)


def _format(path: pathlib.Path) -> str:
  compressed = path.suffix in ('.gz', '.zst')
  suffix = pathlib.Path(path.stem).suffix if compressed else path.suffix
  if suffix not in ('.txt', '.jsonl') and not (compressed and not suffix):
    raise ValueError(
      f'{path} is not a .txt or .jsonl file, plain or with .gz or .zst; narrow the pattern or rename it'
    )
  return suffix or '.txt'


def _read_text(chunks: Iterable[bytes], path: pathlib.Path) -> Iterator[str]:
  yield files.decode(b''.join(chunks), str(path))


def _read_jsonl(chunks: Iterable[bytes], path: pathlib.Path, field: str) -> Iterator[str]:
  for number, line in enumerate(files.split_lines(chunks), start=1):
    where = f'{path}:{number}'
    if not (line := files.decode(line, where)).strip():
      continue
    try:
      row = json.loads(line)
    except (ValueError, RecursionError) as error:  # nested too deeply
      raise ValueError(f'{where} is not JSON: {error}') from None
    if not isinstance(row, dict) or not isinstance(row.get(field), str):
      keys = f'has {sorted(row)}' if isinstance(row, dict) else f'is a {type(row).__name__}'
      raise ValueError(f'{where} has no text under {field!r} (it {keys}); set field=…')
    try:
      row[field].encode()
    except UnicodeEncodeError as error:  # "\ud800" is JSON, but not a character
      raise ValueError(f'{where} has a lone surrogate, which is not text: {error}') from None
    yield row[field]
