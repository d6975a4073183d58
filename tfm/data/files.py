"""Reading text files, plain or compressed, and saying where one is no text."""

import glob
import gzip
import os
import pathlib
import zlib
from collections.abc import Iterable, Iterator, Mapping

import zstandard


CHUNK = 1 << 20


def matching(pattern: str) -> list[pathlib.Path]:
  """The files that match a pattern, in order; `**` matches any folders, `~` is the home folder."""
  pattern = os.path.expanduser(pattern)
  found = [pattern] if os.path.isfile(pattern) else glob.glob(pattern, recursive=True)
  return [pathlib.Path(path) for path in sorted(set(found)) if not os.path.isdir(path)]


def of_splits(spec: str, patterns: Mapping[str, str]) -> dict[str, list[pathlib.Path]]:
  """The files of each split, which match its pattern.

  Raises:
    ValueError: for the source `spec`, if a split has none.
  """
  paths = {split: matching(pattern) for split, pattern in patterns.items()}
  for split, pattern in patterns.items():
    if not paths[split]:
      raise ValueError(
        f'{spec} matches no file: {pattern!r} is not there; give a path, or splits=… as the files are called'
      )
  return paths


def chunks(path: pathlib.Path) -> Iterator[bytes]:
  """A file's content, uncompressed where it ends in .gz or .zst.

  Raises:
    ValueError: if it cannot be read.
  """
  try:
    with (gzip.open if path.suffix == '.gz' else open)(path, 'rb') as file:
      found = iter(lambda: file.read(CHUNK), b'')
      yield from _unzstd(found) if path.suffix == '.zst' else found
  except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
    raise ValueError(f'{path} cannot be read: {error}') from error


def lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
  """Content cut at each b'\\n', which is left out; other line separators of Unicode are characters."""
  rest = []
  for chunk in chunks:
    first, *more = chunk.split(b'\n')
    rest.append(first)
    for part in more:
      yield b''.join(rest)
      rest = [part]
  if rest:
    yield b''.join(rest)


def text_lines(path: pathlib.Path) -> Iterator[str]:
  """A file's lines without their ends; what follows the last end is a line if it is not empty.

  Raises:
    ValueError: if the file cannot be read, or a line is not UTF-8.
  """
  previous = None
  for number, line in enumerate(lines(chunks(path)), start=1):
    if previous is not None:
      yield previous
    previous = decode(line.removesuffix(b'\r'), f'{path}:{number}')
  if previous:
    yield previous


def decode(data: bytes, where: str) -> str:
  """UTF-8 as text; `where` it stands is for the error.

  Raises:
    ValueError: if it is not UTF-8.
  """
  try:
    return data.decode()
  except UnicodeDecodeError as error:
    raise ValueError(f'{where} is not UTF-8 (byte {error.start}: {error.reason}); convert it first') from None


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
