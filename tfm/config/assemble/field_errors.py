"""Errors that begin with the config field."""

import re
from collections.abc import Callable, Collection

from tfm.errors import require, suggest


def build_field(field: str, build: Callable, *args, **kwargs):
  """Calls `build`; a ValueError gets `config.field=` put before its message."""
  try:
    return build(*args, **kwargs)
  except ValueError as error:
    raise ValueError(f'config.{field}={error}') from error


def require_one_of(field: str, value: str, known: Collection[str]) -> None:
  """Raises ValueError for a name that is not among the known ones."""
  require(value in known, f'config.{field}={value!r} is unknown; {suggest(str(value), known)}')


def compile_pattern(field: str, pattern: str) -> re.Pattern:
  """Compiles a regular expression; raises ValueError with the field if it is invalid."""
  try:
    return re.compile(pattern)
  except (re.error, RecursionError) as error:
    raise ValueError(f'config.{field}={pattern!r} is not a regular expression: {error}') from error
