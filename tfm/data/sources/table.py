"""The user's tables: texts in one column, their classes in another."""

import csv
import dataclasses
import pathlib
from collections.abc import Iterator

from tfm.data import files, split_files
from tfm.data.corpus import RawDocuments
from tfm.data.documents import SPLITS
from tfm.data.sources import protocol
from tfm.spec import NonNegativeInt


@dataclasses.dataclass(frozen=True)
class Table(protocol.StoredSource):
  """Rows of .csv, .tsv or .tab files, plain, .gz or .zst, whose first line names the columns:
  table("reviews/*.csv", text="review", label="stars"). Quotes are as in RFC 4180: quoted text may contain
  line breaks. Spaces around a text and a label are removed.

  Attributes:
    pattern: files, with `{split}`, as in `labelled`.
    text, label: the columns.
    splits: how the files name the training, the validation and the test split; at least the first.
    skip: the number of lines to skip after the names, such as the two of Orange's .tab files.

  Raises:
    ValueError: from `prepare`, for a missing column, or a row with a different number of columns or without
      a label.
  """

  fields = ('text', 'label')
  suffixes = '.csv', '.tsv', '.tab'

  pattern: str
  text: str
  label: str
  splits: tuple[str, ...] = SPLITS
  skip: NonNegativeInt = 0

  def raw_documents(self) -> RawDocuments:
    if self.skip < 0:
      raise ValueError(f'{self.spec}: skip={self.skip} must be 0 or more lines')
    found = split_files.find_split_files(self.spec, self.pattern, self.splits)
    return found.documents(self.spec, self.fields, self.rows)

  def rows(self, path: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Yields (text, label) of each row of a file."""
    ends = [end for end in path.suffixes if end in self.suffixes]
    if not ends:
      raise ValueError(
        f'{self.spec} reads {", ".join(self.suffixes)} files, and {path} has none of these suffixes; '
        'rename it'
      )
    delimiter = ',' if ends[-1] == '.csv' else '\t'
    rows = csv.reader((f'{line}\n' for line in files.read_lines(path)), delimiter=delimiter, strict=True)
    try:
      names = next(rows, [])
      for name in (self.text, self.label):
        if names.count(name) != 1:
          raise ValueError(
            f'{self.spec} needs one column {name!r}, and {path} has the columns {", ".join(names)}'
          )
      text, label = names.index(self.text), names.index(self.label)
      for number, row in enumerate(rows):
        if number < self.skip or not row:  # blank lines are skipped
          continue
        if len(row) != len(names) or not row[label].strip():
          raise ValueError(
            f'{path}:{rows.line_num} has {len(row)} columns of {len(names)}, or no {self.label}; it begins '
            f'{" | ".join(row)[:40]!r}'
          )
        yield row[text].strip(), row[label].strip()
    except csv.Error as error:
      raise ValueError(f'{path}:{rows.line_num} is not a valid row: {error}') from error
