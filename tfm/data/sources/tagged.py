"""The user's sentences, with a class for each word."""

import dataclasses
import pathlib
import re
from collections.abc import Iterator

from tfm.data import files, split_files
from tfm.data.corpus import RawDocuments
from tfm.data.documents import SPLITS
from tfm.data.sources import protocol


DOCUMENT_START = '-DOCSTART-'  # CoNLL's separator of documents, which belongs to no sentence


@dataclasses.dataclass(frozen=True)
class Tagged(protocol.StoredSource):
  """Lines of a word and its tag, with a blank line between sentences, as in CoNLL (Tjong Kim Sang & De
  Meulder 2003), in files that match a pattern, plain, .gz or .zst. Columns are separated by spaces or tabs;
  the first is the word, the last the tag.

  The text of a sentence is its words, joined by spaces.

  Attributes:
    pattern, splits: as in `labelled`.
  """

  fields = ('text', 'labels')
  suffixes = ('.conll',)

  pattern: str
  splits: tuple[str, ...] = SPLITS

  def raw_documents(self) -> RawDocuments:
    found = split_files.find_split_files(self.spec, self.pattern, self.splits)
    return found.documents(self.spec, self.fields, _read_sentences)


def _read_sentences(path: pathlib.Path) -> Iterator[tuple[str, str]]:
  """Yields the words and the tags of each sentence of a file."""
  words, tags = [], []
  for number, line in enumerate(files.read_lines(path), start=1):
    columns = re.findall(r'[^ \t]+', line)
    if columns and columns[0] != DOCUMENT_START:
      if len(columns) < 2:
        raise ValueError(
          f'{path}:{number} has one column; a line must be a word and its tag, and a blank line ends a '
          'sentence'
        )
      words.append(columns[0])
      tags.append(columns[-1])
    elif not columns and words:
      yield ' '.join(words), ' '.join(tags)
      words, tags = [], []
  if words:
    yield ' '.join(words), ' '.join(tags)
