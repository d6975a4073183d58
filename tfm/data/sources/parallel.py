"""The user's aligned files: sentences and their translations."""

import dataclasses
import functools
import itertools
import logging
import pathlib
from collections.abc import Callable, Iterator

from tfm.data import files, split_files
from tfm.data.corpus import RawDocuments
from tfm.data.documents import Document
from tfm.data.sources import protocol
from tfm.errors import importing_extra


MAX_LINES_SHOWN = 10  # in a warning

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Parallel(protocol.StoredSource):
  """Two files, plain, .gz or .zst, where line i of one is the translation of line i of the other (the Moses
  convention); or one file of lines `source TAB target`.

  With `{split}` in the paths each split has its own files: parallel("corpus/{split}.en.gz",
  "corpus/{split}.de.gz", splits=("train", "val", "test_2016")). A split that is not named is carved out of
  the training split, by the hash of the source sentence.

  Attributes:
    src, tgt: the paths; without `tgt`, `src` has two columns.
    splits: as in `text`.
    lowercase: whether to convert all text to lower case.
    moses: the languages of both sides, such as ("en", "de"): their punctuation is normalized and they are
      split into Moses tokens (Koehn et al. 2007), as papers that state tokenized BLEU prepare texts. A model
      that was trained on tokens translates tokens. () leaves texts as they are.

  Raises:
    ValueError: if `moses` does not name two languages, or paths have {split} in one of them only.
  """

  fields = ('source', 'target')
  suffixes = ('.tsv',)

  src: str
  tgt: str = ''
  splits: tuple[str, ...] = ('train', 'validation', 'test')
  lowercase: bool = False
  moses: tuple[str, ...] = ()

  def raw_documents(self) -> RawDocuments:
    has_splits = '{split}' in self.src
    if self.tgt and has_splits != ('{split}' in self.tgt):
      raise ValueError(f'{self.spec} has {{split}} in only one path; use it in both or neither')
    if len(self.moses) not in (0, 2):
      raise ValueError(f'{self.spec} has moses={self.moses!r}; name the languages of both sides, or none')
    sides = [self._find_files(path) for path in (self.src, self.tgt) if path]
    reported = set()

    def read(split: str | None, *paths: pathlib.Path) -> Iterator[Document]:
      edit = self._make_editors()
      empty, count = [], 0
      for count, pair in enumerate(_pairs(*paths), start=1):
        if all(text.strip() for text in pair):
          yield split, *(change(text) for change, text in zip(edit, pair, strict=True))
        else:
          empty.append(count)
      if empty and paths not in reported:
        reported.add(paths)
        _log.warning(
          '%s: %d of %d pairs have an empty side and are skipped: lines %s',
          ' and '.join(map(str, paths)),
          len(empty),
          count,
          ', '.join(map(str, empty[:MAX_LINES_SHOWN])) + (', …' if len(empty) > MAX_LINES_SHOWN else ''),
        )

    readers = [
      functools.partial(read, aligned[0][0], *(path for _, path in aligned)) for aligned in zip(*sides)
    ]
    return RawDocuments(self.spec, readers, sides[0].fixed, self.fields)

  def _make_editors(self) -> list[Callable[[str], str]]:
    """What is done to the text of each side."""
    lower = str.lower if self.lowercase else str
    return [lambda text, split=split: split(lower(text)) for split in map(_moses_splitter, self.moses)] or [
      lower
    ] * 2

  def _find_files(self, pattern: str) -> split_files.SplitFiles:
    """The one file of each split."""
    found = split_files.find_split_files(self.spec, pattern, self.splits)
    for paths in found.paths.values():
      if len(paths) > 1:
        raise ValueError(
          f'{self.spec} matches {len(paths)} files for one split: {paths[0]}, …; give one file'
        )
    return found


def _moses_splitter(language: str) -> Callable[[str], str]:
  with importing_extra('translation'):
    import sacremoses
  normalizer, tokenizer = sacremoses.MosesPunctNormalizer(language), sacremoses.MosesTokenizer(language)
  return lambda text: tokenizer.tokenize(normalizer.normalize(text), return_str=True, escape=False)


def _pairs(*paths: pathlib.Path) -> Iterator[tuple[str, str]]:
  """Yields the corresponding lines of two files, or the columns of one."""
  if len(paths) == 1:
    for number, line in enumerate(files.read_lines(paths[0]), start=1):
      columns = line.split('\t')
      if len(columns) != 2:
        raise ValueError(
          f'{paths[0]}:{number} has {len(columns)} columns; a line must be `source TAB target`'
        )
      yield tuple(columns)
    return
  counts = [0, 0]
  for pair in itertools.zip_longest(*map(files.read_lines, paths)):
    counts = [count + (text is not None) for count, text in zip(counts, pair)]
    if None not in pair:
      yield pair
  if counts[0] != counts[1]:
    raise ValueError(
      f'{paths[0]} has {counts[0]} lines and {paths[1]} {counts[1]}; line i of one must be the '
      'translation of line i of the other'
    )
