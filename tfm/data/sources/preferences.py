"""The user's prompts, each with a continuation that is preferred to another one."""

import dataclasses
import functools

from tfm.data import json_lines, split_files
from tfm.data.corpus import RawDocuments
from tfm.data.documents import SPLITS
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
    read = functools.partial(json_lines.read_fields, fields=self.fields, remedy='rename its keys')
    return found.documents(self.spec, self.fields, read)
