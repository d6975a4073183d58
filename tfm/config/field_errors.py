"""Errors that begin with the config field."""

import re
from collections.abc import Callable

from tfm.errors import prefixing


def build_field(field: str, build: Callable, *args, **kwargs):
  """Calls `build`; a ValueError gets `config.field=` put before its message."""
  with prefixing(f'config.{field}='):
    return build(*args, **kwargs)


def compile_pattern(field: str, pattern: str) -> re.Pattern:
  """Compiles a regular expression; raises ValueError with the field if it is invalid."""
  try:
    return re.compile(pattern)
  except (re.error, RecursionError) as error:
    raise ValueError(f'config.{field}={pattern!r} is not a regular expression: {error}') from error
