"""The words of a command line: which are flags, which override config fields, and which are neither."""

import argparse
import itertools
import sys
from collections.abc import Sequence

from tfm.errors import suggest


def split_overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
  """The words of a command line, apart from those that set config fields, each as `--config.path=value`.

  `argparse` would take one with a space, such as '--config.model.mask=causal & window(64)', for an argument.
  """
  own, overrides, rest = [], [], iter(words)
  for word in rest:
    if not word.startswith('--config.'):
      own.append(word)
    else:
      overrides.append(word if '=' in word else '='.join([word, *itertools.islice(rest, 1)]))
  return own, overrides


def refuse_strays(words: Sequence[str], known: Sequence[str], prefix: str | None) -> None:
  """Raises ValueError for words that are neither flags nor overrides, which begin with a prefix."""
  for word in words:
    # A word without dashes may be the value of the one before.
    if not prefix or word.startswith('--') and not word.startswith(prefix):
      raise ValueError(f'{word!r} is not a flag; {suggest(word.partition("=")[0], known)}')


def note_repeated(parser: argparse.ArgumentParser, own: Sequence[str], overrides: Sequence[str]) -> None:
  """Prints which flags and config fields are given more than once. The last one counts, which scripts that
  append to a command rely on.
  """
  appending = (action for action in parser._actions if isinstance(action, argparse._AppendAction))
  repeatable = {name for action in appending for name in action.option_strings}
  single = {name for action in parser._actions for name in action.option_strings} - repeatable
  flags = (word.partition('=')[0] for word in own)
  names = [*(name for name in flags if name in single), *(word.partition('=')[0] for word in overrides)]
  for name in {name: None for name in names if names.count(name) > 1}:
    print(f'note: {name} is given more than once; the last one counts', file=sys.stderr)
