"""Reads text files, plain or compressed; errors name the file and line that is not text."""

import codecs
import glob
import gzip
import os
import pathlib
import zlib
from collections.abc import Iterable, Iterator

import zstandard


CHUNK = 1 << 20


def find_files(pattern: str) -> list[pathlib.Path]:
  """Returns the files that match a pattern, sorted; `**` matches any folders, `~` is the home folder."""
  pattern = os.path.expanduser(pattern)
  matches = [pattern] if os.path.isfile(pattern) else glob.glob(pattern, recursive=True)
  return [pathlib.Path(path) for path in sorted(set(matches)) if not os.path.isdir(path)]


def read_chunks(path: pathlib.Path) -> Iterator[bytes]:
  """Yields a file's content; a file that ends in .gz or .zst is decompressed.

  Raises:
    ValueError: if it cannot be read.
  """
  if path.exists() and not path.is_file():
    raise ValueError(f'{path} is not a regular file, which is read several times; write its content to one')
  try:
    with (gzip.open if path.suffix == '.gz' else open)(path, 'rb') as file:
      chunks = iter(lambda: file.read(CHUNK), b'')
      yield from _drop_byte_order_mark(_decompress_zstd(chunks) if path.suffix == '.zst' else chunks)
  except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
    raise ValueError(f'{path} cannot be read: {error}') from error


def split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
  """Splits content at each b'\\n', which is removed; other line separators of Unicode are characters."""
  rest = []
  for chunk in chunks:
    first, *more = chunk.split(b'\n')
    rest.append(first)
    for part in more:
      yield b''.join(rest)
      rest = [part]
  if rest:
    yield b''.join(rest)


def read_lines(path: pathlib.Path) -> Iterator[str]:
  """Yields a file's lines without their ends; text after the last line end is a line if it is not empty.

  Raises:
    ValueError: if the file cannot be read, or a line is not UTF-8.
  """
  previous = None
  for number, line in enumerate(split_lines(read_chunks(path)), start=1):
    if previous is not None:
      yield previous
    previous = decode(line.removesuffix(b'\r'), f'{path}:{number}')
  if previous:
    yield previous


def decode(data: bytes, where: str) -> str:
  """Decodes UTF-8; `where` is the location, for the error.

  Raises:
    ValueError: if the data is not UTF-8.
  """
  try:
    return data.decode()
  except UnicodeDecodeError as error:
    raise ValueError(f'{where} is not UTF-8 (byte {error.start}: {error.reason}); convert it first') from None


def _drop_byte_order_mark(chunks: Iterable[bytes]) -> Iterator[bytes]:
  """The content without a leading UTF-8 byte-order mark, which spreadsheets write."""
  chunks, start = iter(chunks), b''
  for chunk in chunks:
    start += chunk
    if len(start) >= len(codecs.BOM_UTF8):
      break
  yield start.removeprefix(codecs.BOM_UTF8)
  yield from chunks


def _decompress_zstd(chunks: Iterable[bytes]) -> Iterator[bytes]:
  # zstandard's own file objects stop silently at a truncation and after the first of several frames.
  frame = None
  for chunk in chunks:
    while chunk:
      frame = frame or zstandard.ZstdDecompressor().decompressobj()
      yield frame.decompress(chunk)
      chunk = frame.unused_data if frame.eof else b''
      frame = None if frame.eof else frame
  if frame:
    raise EOFError('it ends in the middle of a zstd frame')
