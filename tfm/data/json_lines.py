"""Texts in .jsonl files: an object a line."""

import pathlib
from collections.abc import Iterator, Sequence

from tfm.data import files
from tfm.errors import parse_json


def read_fields(path: pathlib.Path, fields: Sequence[str], remedy: str) -> Iterator[tuple[str, ...]]:
  """Yields the texts under some keys of each object; blank lines are skipped.

  Args:
    remedy: what to do about an object without a key, for the message.

  Raises:
    ValueError: for a line that is no JSON object, or lacks a text.
  """
  for number, line in enumerate(files.split_lines(files.read_chunks(path)), start=1):
    where = f'{path}:{number}'
    if not (line := files.decode(line, where)).strip():
      continue
    try:
      row = parse_json(line)
    except ValueError as error:
      raise ValueError(f'{where} is not JSON: {error}') from None
    for field in fields:
      if not isinstance(row, dict) or not isinstance(row.get(field), str):
        keys = f'has {sorted(row)}' if isinstance(row, dict) else f'is a {type(row).__name__}'
        raise ValueError(f'{where} has no text under {field!r} (it {keys}); {remedy}')
      try:
        row[field].encode()
      except UnicodeEncodeError as error:  # "\ud800" is JSON, but not a character
        raise ValueError(f'{where} has a lone surrogate, which is not text: {error}') from None
    yield tuple(row[field] for field in fields)
