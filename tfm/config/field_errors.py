"""Errors that begin with the config field."""

import re
from collections.abc import Callable


def build_field(field: str, build: Callable, *args, **kwargs):
  """Calls `build`; a ValueError gets `config.field=` put before its message."""
  try:
    return build(*args, **kwargs)
  except ValueError as error:
    raise ValueError(f'config.{field}={error}') from error


def compile_pattern(field: str, pattern: str) -> re.Pattern:
  """Compiles a regular expression; raises ValueError with the field if it is invalid."""
  try:
    return re.compile(pattern)
  except (re.error, RecursionError) as error:
    raise ValueError(f'config.{field}={pattern!r} is not a regular expression: {error}') from error
