"""Reading text files, plain or compressed, and saying where one is no text."""

import gzip
import pathlib
import zlib
from collections.abc import Iterable, Iterator

import zstandard

CHUNK = 1 << 20


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
