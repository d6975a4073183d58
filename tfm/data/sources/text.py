"""A user's own text files."""

import dataclasses
import glob
import gzip
import json
import os
import pathlib
import zlib
from collections.abc import Iterable, Iterator

import zstandard

from tfm.data import corpus
from tfm.data.sources import protocol

CHUNK = 1 << 20


@dataclasses.dataclass(frozen=True)
class Text(protocol.Source):
  """The .txt and .jsonl files that match a pattern, plain or compressed (.gz, .zst).

  A .txt file is one document; so is every line of a .jsonl file that is not blank. A file without
  either suffix under a .gz or .zst is read as .txt.

  Attributes:
    pattern: files, as in "plays/*.txt"; `**` matches any folders, `~` is the home folder.
    field: the key of the text in the objects of .jsonl files.
  """

  pattern: str
  field: str = 'text'

  def prepare(self, cache_dir: pathlib.Path) -> corpus.Corpus:
    pattern = os.path.expanduser(self.pattern)
    found = [pattern] if os.path.isfile(pattern) else glob.glob(pattern, recursive=True)
    files = [pathlib.Path(path) for path in sorted(set(found)) if not os.path.isdir(path)]
    if not files:
      raise ValueError(f'{self.spec} matches no file; give the path of .txt or .jsonl files')
    readers = [(path, _format(path)) for path in files]

    def read() -> Iterator[corpus.Document]:
      for path, suffix in readers:
        chunks = _chunks(path)
        texts = _lines(chunks, path, self.field) if suffix == '.jsonl' else _whole(chunks, path)
        for text in texts:
          yield None, text

    return corpus.prepare(self.spec, read, cache_dir)


def _format(path: pathlib.Path) -> str:
  compressed = path.suffix in ('.gz', '.zst')
  suffix = pathlib.Path(path.stem).suffix if compressed else path.suffix
  if suffix not in ('.txt', '.jsonl') and not (compressed and not suffix):
    raise ValueError(f'{path} is not a .txt or .jsonl file, plain or with .gz or .zst; '
                     'narrow the pattern or rename it')
  return suffix or '.txt'


def _whole(chunks: Iterable[bytes], path: pathlib.Path) -> Iterator[str]:
  yield _decode(b''.join(chunks), str(path))


def _lines(chunks: Iterable[bytes], path: pathlib.Path, field: str) -> Iterator[str]:
  for number, line in enumerate(_split_lines(chunks), start=1):
    where = f'{path}:{number}'
    if not (line := _decode(line, where)).strip():
      continue
    try:
      row = json.loads(line)
    except ValueError as error:
      raise ValueError(f'{where} is not JSON: {error}') from None
    if not isinstance(row, dict) or not isinstance(row.get(field), str):
      keys = f'has {sorted(row)}' if isinstance(row, dict) else f'is a {type(row).__name__}'
      raise ValueError(f'{where} has no text under {field!r} (it {keys}); set field=…')
    try:
      row[field].encode()
    except UnicodeEncodeError as error:  # "\ud800" is JSON, but no character
      raise ValueError(f'{where} holds a lone surrogate, which is no text: {error}') from None
    yield row[field]


def _split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
  rest = []
  for chunk in chunks:
    first, *more = chunk.split(b'\n')
    rest.append(first)
    for part in more:
      yield b''.join(rest)
      rest = [part]
  if rest:
    yield b''.join(rest)


def _decode(data: bytes, where: str) -> str:
  try:
    return data.decode()
  except UnicodeDecodeError as error:
    raise ValueError(f'{where} is not UTF-8 (byte {error.start}: {error.reason}); '
                     'convert it first') from None


def _chunks(path: pathlib.Path) -> Iterator[bytes]:
  """The file's content, uncompressed."""
  try:
    with (gzip.open if path.suffix == '.gz' else open)(path, 'rb') as file:
      chunks = iter(lambda: file.read(CHUNK), b'')
      yield from _unzstd(chunks) if path.suffix == '.zst' else chunks
  except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
    raise ValueError(f'{path} cannot be read: {error}') from error


def _unzstd(chunks: Iterable[bytes]) -> Iterator[bytes]:
  # zstandard's own files end silently at a truncation and after the first of several frames.
  frame = None
  for chunk in chunks:
    while chunk:
      frame = frame or zstandard.ZstdDecompressor().decompressobj()
      yield frame.decompress(chunk)
      chunk = frame.unused_data if frame.eof else b''
      frame = None if frame.eof else frame
  if frame:
    raise EOFError('it ends in the middle of a zstd frame')
