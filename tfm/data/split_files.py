"""Which of the user's files belong to which split."""

import dataclasses
import functools
import glob
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tfm.data import files, splitting
from tfm.data.corpus import RawDocuments
from tfm.data.documents import SPLITS, Document


ReadFile = Callable[[pathlib.Path], Iterable[tuple[str, ...]]]  # the fields of each document of a file

PLACEHOLDER = '{split}'  # in a path: the name of a split
# How files usually name the training, the validation and the test split; only suggested, never assumed.
USUAL_NAMES = ('train', 'training'), ('validation', 'valid', 'val', 'dev'), ('test', 'eval')


@dataclasses.dataclass(frozen=True)
class SplitFiles:
  """The files of each split. Iterating yields (split, file), where the split is None if the documents of the
  file are assigned by their hashes.

  Attributes:
    paths: split → its files, sorted.
  """

  paths: Mapping[str, Sequence[pathlib.Path]]

  @property
  def fixed(self) -> list[str]:
    """The splits that are used as they are; the others are carved out of the training split."""
    return splitting.fixed_splits(self.paths)

  def __iter__(self) -> Iterator[tuple[str | None, pathlib.Path]]:
    fixed = self.fixed
    for split, paths in self.paths.items():
      for path in paths:
        yield split if split in fixed else None, path

  def documents(self, source: str, fields: Sequence[str], read: ReadFile) -> RawDocuments:
    """Returns what reads the documents, each file on its own.

    Args:
      source: its spec, for messages; fields: the names of a document's fields.
      read: yields the fields of each document of a file.
    """
    readers = [functools.partial(_read_documents, read, split, path) for split, path in self]
    return RawDocuments(source, readers, self.fixed, fields)


def _read_documents(read: ReadFile, split: str | None, path: pathlib.Path) -> Iterator[Document]:
  return ((split, *values) for values in read(path))


def find_split_files(spec: str, pattern: str, names: Sequence[str]) -> SplitFiles:
  """Finds the files of each split: `{split}` in the pattern stands for its name; without `{split}`, all files
  are of the training split.

  Args:
    spec: the source's spec, for errors.
    pattern: files; `**` matches any folders, `~` is the home folder.
    names: how the files name the training, the validation and the test split; '' for one without files.

  Raises:
    ValueError: for another number or type of names, or names without `{split}`; and for a split without a
      file, where the message has the names that the files have.
  """
  if not 1 <= len(names) <= len(SPLITS) or not all(isinstance(name, str) for name in names) or not names[0]:
    raise ValueError(
      f'{spec}: splits={names!r} must name the training split, and optionally the validation and the '
      'test split'
    )
  by_split = {split: name for split, name in zip(SPLITS, names) if name}
  patterns = {split: pattern.replace(PLACEHOLDER, name) for split, name in by_split.items()}
  if PLACEHOLDER not in pattern:
    if tuple(names) != SPLITS:
      raise ValueError(f'{spec}: splits={names!r} replaces {PLACEHOLDER}, which {pattern!r} does not have')
    patterns = {'train': pattern}
  paths = {split: files.find_files(split_pattern) for split, split_pattern in patterns.items()}
  for split, split_pattern in patterns.items():
    if not paths[split]:
      if os.path.isdir(os.path.expanduser(split_pattern)):
        example = os.path.join(split_pattern, '**/*.txt')
        raise ValueError(
          f'{spec} matches no file: {split_pattern!r} is a folder; use a pattern such as {example!r}'
        )
      # A run may be read from another folder than it was trained in.
      where = '' if os.path.isabs(os.path.expanduser(split_pattern)) else f' in {os.getcwd()}'
      raise ValueError(f'{spec} matches no file: {split_pattern!r} does not exist{where}; {_remedy(pattern)}')
  return SplitFiles(paths)


def present_names(pattern: str) -> set[str]:
  """Returns the names that `{split}` stands for in the paths of existing files."""
  expanded = os.path.expanduser(pattern)
  folder = os.path.dirname(expanded.partition(PLACEHOLDER)[0])
  part = expanded.removeprefix(folder).lstrip('/').partition('/')[0]  # the file or folder with the name
  name, again = re.escape(PLACEHOLDER), r'\1'
  shape = re.escape(part).replace(name, '(.+?)', 1).replace(name, again).replace(r'\*', '.*')
  paths = glob.glob(os.path.join(folder, '*'), recursive=True)
  names = {match[1] for path in paths if (match := re.fullmatch(shape, os.path.basename(path)))}
  return {name for name in names if files.find_files(pattern.replace(PLACEHOLDER, name))}


def _remedy(pattern: str) -> str:
  """What to use if a pattern matches no file for one of the splits."""
  present = present_names(pattern) if PLACEHOLDER in pattern else set()
  if not present:
    return 'give the path of files that do'
  usual = [next((name for name in names if name in present), '') for names in USUAL_NAMES]
  if not usual[0]:
    return f'set splits=(…) to the names of the files: {", ".join(sorted(present))}'
  return f'use splits={tuple(usual if usual[2] else usual[:2] if usual[1] else usual[:1])!r}'
