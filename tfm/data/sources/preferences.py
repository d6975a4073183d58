"""The user's prompts, each with a continuation that is preferred to another one."""

import dataclasses
from collections.abc import Iterator

from tfm.data import json_lines, split_files
from tfm.data.corpus import RawDocuments
from tfm.data.documents import SPLITS, Document
from tfm.data.sources import protocol


@dataclasses.dataclass(frozen=True)
class Preferences(protocol.StoredSource):
  """Lines {"prompt": …, "chosen": …, "rejected": …} of the .jsonl files that match a pattern, plain, .gz or
  .zst; blank lines are skipped. A continuation follows its prompt without anything between them.

  Attributes:
    pattern, splits: as in `labelled`.
  """

  fields = ('prompt', 'chosen', 'rejected')
  suffixes = ('.jsonl',)

  pattern: str
  splits: tuple[str, ...] = SPLITS

  def raw_documents(self) -> RawDocuments:
    found = split_files.find_split_files(self.spec, self.pattern, self.splits)

    def read() -> Iterator[Document]:
      for split, path in found:
        for texts in json_lines.read_fields(path, self.fields, 'rename its keys'):
          yield split, *texts

    return RawDocuments(self.spec, [read], found.fixed, self.fields)
