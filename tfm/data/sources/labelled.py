"""The user's texts, each with its class."""

import dataclasses
import pathlib
from collections.abc import Iterator

from tfm.data import files, split_files
from tfm.data.corpus import RawDocuments
from tfm.data.documents import SPLITS
from tfm.data.sources import protocol


@dataclasses.dataclass(frozen=True)
class Labelled(protocol.StoredSource):
  """Lines `label TAB text` of the files that match a pattern, plain, .gz or .zst; blank lines are skipped.

  With `{split}` in the pattern each split has its own files: labelled("sst2/{split}.tsv", splits=("train",
  "dev")). A split that is not named is carved out of the training split, by the hash of the text.

  Attributes:
    pattern: files, as in "reviews/*.tsv"; `**` matches any folders, `~` is the home folder.
    splits: how the files name the training, the validation and the test split; at least the first.
  """

  fields = ('text', 'label')
  suffixes = ('.tsv',)

  pattern: str
  splits: tuple[str, ...] = SPLITS

  def raw_documents(self) -> RawDocuments:
    found = split_files.find_split_files(self.spec, self.pattern, self.splits)
    return found.documents(self.spec, self.fields, _read_labelled_texts)


def _read_labelled_texts(path: pathlib.Path) -> Iterator[tuple[str, str]]:
  """Yields (text, label) of each line of a file."""
  for number, line in enumerate(files.read_lines(path), start=1):
    label, tab, text = line.partition('\t')
    if not line.strip():
      continue
    if not tab or not label.strip():
      raise ValueError(f'{path}:{number} is not `label TAB text`; it begins {line[:40]!r}')
    yield text, label.strip()
