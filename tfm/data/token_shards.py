"""Tokens in files of a folder or a bucket, of which a process reads only those that it needs.

The documents of a split are divided into shards. A shard has two files for every field:

  FIELD.ids-00000-of-00004       the tokens of its documents, one after another: little-endian uint16 or -32
  FIELD.lengths-00000-of-00004   the number of tokens of each document: little-endian uint32

Folders are paths, or URLs that fsspec knows, such as gs://bucket/folder (with the package gcsfs).
"""

import dataclasses
import functools
import hashlib
import os
import pathlib
from collections.abc import Mapping, Sequence

import fsspec
import numpy as np
from fsspec.implementations.local import LocalFileSystem

from tfm.data import file_hashes
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.errors import require


LENGTH_DTYPE = np.dtype('<u4')

Digest = tuple[int, str]  # bytes and SHA-256 of a file


@dataclasses.dataclass(frozen=True)
class Storage:
  """A folder on a file system of fsspec.

  Attributes:
    url: as the user writes it, for messages.
  """

  url: str

  @functools.cached_property
  def _root(self) -> tuple[fsspec.AbstractFileSystem, str]:
    try:
      return fsspec.core.url_to_fs(self.url)
    except (ImportError, ValueError) as error:  # the package of a protocol is missing; it is unknown
      raise ValueError(f'{self.url} cannot be opened: {error}') from error

  def __getstate__(self):
    return dict(url=self.url)

  def read(self, name: str) -> bytes:
    """Returns the content of a file.

    Raises:
      FileNotFoundError: if it is not there.
    """
    fs, root = self._root
    return fs.cat_file(f'{root}/{name}')

  def wait_until_visible(self, name: str) -> None:
    """Waits for a file that another machine has written, as `file_hashes.wait_until_visible`."""
    fs, root = self._root
    if isinstance(fs, LocalFileSystem):
      file_hashes.wait_until_visible(pathlib.Path(root, name))

  def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
    """Returns bytes first … stop - 1 of a file for each (name, first, stop); of a bucket all at once."""
    fs, root = self._root
    names, firsts, stops = zip(*ranges)
    paths = [f'{root}/{name}' for name in names]
    if isinstance(fs, LocalFileSystem):  # it would read 8 KiB for a few bytes
      return [_read_range(*one) for one in zip(paths, firsts, stops)]
    return fs.cat_ranges(paths, [*firsts], [*stops], on_error='raise')

  def write(self, name: str, data: bytes) -> Digest:
    """Writes a file."""
    fs, root = self._root
    path = f'{root}/{name}'
    fs.makedirs(os.path.dirname(path), exist_ok=True)
    fs.pipe_file(path, data)
    return len(data), hashlib.sha256(data).hexdigest()

  def sizes(self) -> dict[str, int]:
    """Returns the bytes of every file below the folder, by name."""
    fs, root = self._root
    found = fs.find(root, detail=True) if fs.exists(root) else {}
    return {path.removeprefix(root).lstrip('/'): entry['size'] for path, entry in found.items()}

  def delete(self) -> None:
    """Deletes the folder and all files in it."""
    fs, root = self._root
    fs.rm(root, recursive=True)


def _read_range(path: str, first: int, stop: int) -> bytes:
  with open(path, 'rb', buffering=0) as file:
    return os.pread(file.fileno(), stop - first, first)


def shard_name(split: str, field: str, kind: str, index: int, count: int) -> str:
  """Returns the name of a file of a shard; its kind is ids or lengths."""
  return f'{split}/{field}.{kind}-{index:05}-of-{count:05}'


class ShardedIds:
  """The tokens of a split as an array [N] of unsigned integers, indexed by a slice or by an array.

  Args:
    folder: where the files are.
    names: of the files.
    counts: the number of tokens in each.
    dtype: of the tokens.
  """

  def __init__(self, folder: Storage, names: Sequence[str], counts: Sequence[int], dtype: np.dtype):
    self._folder, self._names, self.dtype = folder, names, dtype
    self._ends = np.cumsum(counts)

  def __len__(self) -> int:
    return int(self._ends[-1])

  def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
    if isinstance(index, slice):
      first, stop, step = index.indices(len(self))
      require(step == 1, f'step={step}: only neighbors are read')
      return self._read([first], [max(first, stop)])
    index = np.asarray(index)
    run = np.flatnonzero(np.diff(index, prepend=-2) != 1)  # where each run of neighbors begins
    return self._read(index[run], index[np.append(run, len(index))[1:] - 1] + 1)

  def _read(self, firsts: Sequence[int], stops: Sequence[int]) -> np.ndarray:
    """Returns the tokens of several spans, one after another."""
    ranges = []
    for first, stop in zip(firsts, stops):
      while first < stop:
        shard = int(np.searchsorted(self._ends, first, side='right'))
        begin, end = self._ends[shard - 1] if shard else 0, min(stop, self._ends[shard])
        ranges.append((self._names[shard], *(int(i - begin) * self.dtype.itemsize for i in (first, end))))
        first = end
    if not ranges:
      return np.zeros(0, self.dtype)
    parts = self._folder.read_ranges(ranges)
    for (name, begin, end), part in zip(ranges, parts):
      url = f'{self._folder.url}/{name}'
      require(len(part) == end - begin, f'{url} ends before byte {end}; prepare the tokens again')
    return np.frombuffer(b''.join(parts), self.dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class TokenColumn(Sequence):
  """A field of the documents of a split, whose tokens are stored; a document is decoded when it is read.

  Attributes:
    folder: where the shards are; names: of their files of lengths.
    digests: of these files, by name.
    documents: the number of documents.
    ids: the tokens.
    bytes: the size of the texts in UTF-8.
    tokenizer: which encoded them.
  """

  folder: Storage
  names: Sequence[str]
  digests: Mapping[str, Digest]
  documents: int
  ids: ShardedIds
  bytes: int
  tokenizer: Tokenizer

  @functools.cached_property
  def offsets(self) -> np.ndarray:
    """int64 [documents + 1]; document d is `ids[offsets[d]:offsets[d + 1]]`.

    Raises:
      ValueError: naming the file that is no longer what was written.
    """
    parts = []
    for name in self.names:
      data = self.folder.read(name)
      require(
        hashlib.sha256(data).hexdigest() == self.digests[name][1],
        f'{self.folder.url}/{name} is not what was written; prepare the tokens again',
      )
      parts.append(np.frombuffer(data, LENGTH_DTYPE))
    return np.concatenate([[0], np.cumsum(np.concatenate(parts), dtype=np.int64)])

  def __len__(self):
    return self.documents

  def __getitem__(self, index: int) -> str:
    if not 0 <= index < len(self):
      raise IndexError(index)
    return self.tokenizer.decode(self.ids[slice(*self.offsets[index : index + 2])])
