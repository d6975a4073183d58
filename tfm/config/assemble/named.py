"""Errors that name the field of the config."""

from collections.abc import Callable

from tfm.errors import require, suggest


def named(field: str, make: Callable, *args, **kwargs):
  """Calls `make`; a ValueError gets the config field put before it."""
  try:
    return make(*args, **kwargs)
  except ValueError as error:
    raise ValueError(f'config.{field}={error}') from error


def one_of(field: str, value: str, known) -> None:
  """Refuses a name that is not among the known ones."""
  require(value in known, f'config.{field}={value!r} is not there; {suggest(str(value), known)}')
