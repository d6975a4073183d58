"""A user's own aligned files: sentences and their translations."""

import dataclasses
import itertools
import logging
import os
import pathlib
from collections.abc import Iterator

from tfm.data import corpus, files
from tfm.data.sources import protocol


SHOWN = 10  # line numbers in a warning

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Parallel(protocol.Source):
  """Two files of which line i of one is the translation of line i of the other, plain, .gz or .zst
  (the Moses convention); or one file of lines `source TAB target`.

  With `{split}` in the paths there is a file of each split: parallel("corpus/{split}.en.gz",
  "corpus/{split}.de.gz", splits=("train", "val", "test_2016")). What is not named is carved out of the
  training split, by the hash of the source sentence.

  Attributes:
    src, tgt: the paths; without `tgt`, `src` has two columns.
    splits: how the files call the training, the validation and the test split, at least the first.
    lowercase: whether all text is lower-cased.
  """

  fields = ('source', 'target')

  src: str
  tgt: str = ''
  splits: tuple[str, ...] = ('train', 'validation', 'test')
  lowercase: bool = False

  def prepare(self, cache_dir: pathlib.Path) -> corpus.Corpus:
    named = '{split}' in self.src
    if self.tgt and named != ('{split}' in self.tgt):
      raise ValueError(f'{self.spec} has {{split}} in one path only; put it into both or neither')
    sides = [corpus.by_split(self.spec, path, self.splits) for path in (self.src, self.tgt) if path]
    paths = {split: tuple(_path(side[split]) for side in sides) for split in sides[0]}
    fixed = corpus.kept(paths)
    told = set()

    def read() -> Iterator[corpus.Document]:
      for split, found in paths.items():
        empty, count = [], 0
        for count, pair in enumerate(_pairs(*found), start=1):
          if all(text.strip() for text in pair):
            yield (
              split if split in fixed else None,
              *(text.lower() if self.lowercase else text for text in pair),
            )
          else:
            empty.append(count)
        if empty and split not in told:
          told.add(split)
          _log.warning(
            '%s: %d of %d pairs have an empty side and are left out: lines %s',
            ' and '.join(map(str, found)),
            len(empty),
            count,
            ', '.join(map(str, empty[:SHOWN])) + (', …' if len(empty) > SHOWN else ''),
          )

    return corpus.prepare(self.spec, read, cache_dir, fixed, self.fields)


def _path(name: str) -> pathlib.Path:
  path = pathlib.Path(os.path.expanduser(name))
  if not path.is_file():
    raise ValueError(f'{path} is no file; give aligned files, a sentence a line')
  return path


def _pairs(*paths: pathlib.Path) -> Iterator[tuple[str, str]]:
  """The lines of two files side by side, or the columns of one."""
  if len(paths) == 1:
    for number, line in enumerate(files.text_lines(paths[0]), start=1):
      columns = line.split('\t')
      if len(columns) != 2:
        raise ValueError(f'{paths[0]}:{number} has {len(columns)} columns; a line is `source TAB target`')
      yield tuple(columns)
    return
  counts = [0, 0]
  for pair in itertools.zip_longest(*map(files.text_lines, paths)):
    counts = [count + (text is not None) for count, text in zip(counts, pair)]
    if None not in pair:
      yield pair
  if counts[0] != counts[1]:
    raise ValueError(
      f'{paths[0]} has {counts[0]} lines and {paths[1]} {counts[1]}; line i of one must be the '
      'translation of line i of the other'
    )
