"""A user's own sentences, with a class for each word."""

import dataclasses
import pathlib
import re
from collections.abc import Iterator

from tfm.data import corpus, files
from tfm.data.sources import protocol


HEAD = '-DOCSTART-'  # CoNLL's word between documents, which is in no sentence


@dataclasses.dataclass(frozen=True)
class Tagged(protocol.Source):
  """Lines of a word and its tag, with a blank line between sentences, as CoNLL has them (Tjong Kim Sang & De
  Meulder 2003), in files that match a pattern, plain, .gz or .zst. Columns are divided by spaces or tabs; the
  first is the word, the last the tag.

  The text of a sentence is its words, with a space between two.

  Attributes:
    pattern, splits: as of `labelled`.
  """

  fields = ('text', 'labels')

  pattern: str
  splits: tuple[str, ...] = corpus.SPLITS

  def prepare(self, cache_dir: pathlib.Path) -> corpus.Corpus:
    paths = files.of_splits(self.spec, corpus.by_split(self.spec, self.pattern, self.splits))
    fixed = corpus.kept(paths)

    def read() -> Iterator[corpus.Document]:
      for split, path in ((split, path) for split in paths for path in paths[split]):
        for words, tags in _sentences(path):
          yield split if split in fixed else None, ' '.join(words), ' '.join(tags)

    return corpus.prepare(self.spec, read, cache_dir, fixed, self.fields)


def _sentences(path: pathlib.Path) -> Iterator[tuple[list[str], list[str]]]:
  """The words and the tags of each sentence of a file."""
  words, tags = [], []
  for number, line in enumerate(files.text_lines(path), start=1):
    columns = re.findall(r'[^ \t]+', line)
    if columns and columns[0] != HEAD:
      if len(columns) < 2:
        raise ValueError(
          f'{path}:{number} has one column; a line is a word and its tag, and a blank line ends a sentence'
        )
      words.append(columns[0])
      tags.append(columns[-1])
    elif not columns and words:
      yield words, tags
      words, tags = [], []
  if words:
    yield words, tags
