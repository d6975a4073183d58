"""A user's own texts, each with its class."""

import dataclasses
import pathlib
from collections.abc import Iterator

from tfm.data import corpus, files
from tfm.data.sources import protocol


@dataclasses.dataclass(frozen=True)
class Labelled(protocol.Source):
  """Lines `label TAB text` of the files that match a pattern, plain, .gz or .zst; blank lines are no
  examples.

  With `{split}` in the pattern there are files of each split: labelled("sst2/{split}.tsv", splits=("train",
  "dev")). What is not named is carved out of the training split, by the hash of the text.

  Attributes:
    pattern: files, as in "reviews/*.tsv"; `**` matches any folders, `~` is the home folder.
    splits: how the files call the training, the validation and the test split, at least the first.
  """

  fields = ('text', 'label')

  pattern: str
  splits: tuple[str, ...] = corpus.SPLITS

  def prepare(self, cache_dir: pathlib.Path) -> corpus.Corpus:
    paths = files.of_splits(self.spec, corpus.by_split(self.spec, self.pattern, self.splits))
    fixed = corpus.kept(paths)

    def read() -> Iterator[corpus.Document]:
      for split, path in ((split, path) for split in paths for path in paths[split]):
        for number, line in enumerate(files.text_lines(path), start=1):
          label, tab, text = line.partition('\t')
          if not line.strip():
            continue
          if not tab or not label.strip():
            raise ValueError(f'{path}:{number} is not `label TAB text`; it begins {line[:40]!r}')
          yield split if split in fixed else None, text, label.strip()

    return corpus.prepare(self.spec, read, cache_dir, fixed, self.fields)
