"""The console script: `tfm COMMAND --flags`; every other file of this folder is one command.

A command is a module with a docstring, `arguments(parser)` and `main(args)`. One that declares
`--config` gets the complete config there, with every `--config.path.to.field=value` in it; one with `OVERRIDES` gets
such words as `overrides`; one that declares
`study` gets the study, with every such value in its base, what named it as `file`, and all
words of the command as `words`.
"""

import argparse
import dataclasses
import importlib
import logging
import os
import pkgutil
import sys
from collections.abc import Sequence

import jax
from ml_collections import ConfigDict

import tfm.commands
from tfm.config.load import load_config
from tfm.config.overlay import assign_text, complete
from tfm.config.resolve import resolve_config
from tfm.config.schema import default_config, leaves
from tfm.data import cache
from tfm.errors import suggest
from tfm.studies import study as studies
from tfm.training.progress import say


def commands() -> tuple[str, ...]:
  """The names of all commands."""
  return tuple(info.name for info in pkgutil.iter_modules(tfm.commands.__path__) if info.name != 'cli')


def main(argv: Sequence[str] | None = None) -> int:
  """Runs one command; returns the exit status: 0, or 2 where what was asked cannot be done."""
  name, *rest = list(sys.argv[1:] if argv is None else argv) or ['--help']
  if name in ('--help', '-h'):
    print('usage: tfm COMMAND [--flag=value …]; tfm COMMAND --help tells the flags\n')
    for command in commands():
      doc = importlib.import_module(f'tfm.commands.{command}').__doc__
      print(f'  {command:10} {doc.splitlines()[0]}')
    return 0
  try:
    if name not in commands():
      raise ValueError(f'{name!r} is no command; {suggest(name, commands())}')
    command = importlib.import_module(f'tfm.commands.{name}')
    args = parse(name, command, rest)
    strict()
    listen()
    return command.main(args) or 0
  except (ValueError, OSError) as error:
    # A refusal is one sentence; TFM_TRACEBACK=1 shows where it came from.
    if os.environ.get('TFM_TRACEBACK'):
      raise
    print(f'tfm {name}: {error}', file=sys.stderr)
    return 2


def strict() -> None:
  """JAX as every command wants it: no silent broadcasting over ranks; what was compiled is kept."""
  jax.config.update('jax_numpy_rank_promotion', 'raise')
  if not jax.config.jax_compilation_cache_dir:
    jax.config.update('jax_compilation_cache_dir', str(cache.directory() / 'jax'))


def listen() -> None:
  """What tfm logs, such as the kernel that was chosen, is said."""
  log = logging.getLogger('tfm')
  log.setLevel(logging.INFO)
  if not log.handlers:
    log.addHandler(Said())
    log.propagate = False  # what is said once need not be said by the root's handlers, too


class Said(logging.Handler):
  """A log that speaks as the commands do."""

  def emit(self, record):
    say(record.getMessage())


def parse(name: str, command, argv: Sequence[str]) -> argparse.Namespace:
  """The command's flags, with `config` complete, or `study` read, where the command takes one; as `words` all that was said."""
  parser = argparse.ArgumentParser(
    f'tfm {name}',
    description=command.__doc__,
    allow_abbrev=False,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  command.arguments(parser)
  fields = [action for action in parser._actions if action.dest in ('config', 'study')]
  if fields:
    parser.epilog = (
      'config fields, each set by --config.path.to.field=value (with their defaults):\n'
      + '\n'.join(f'  --config.{path}={value!r}' for path, value in leaves(default_config()))
    )
  args, rest = parser.parse_known_args(argv, argparse.Namespace(words=[name, *argv]))
  if getattr(command, 'OVERRIDES', False):
    args.overrides = rest
    return args
  if not fields:
    if rest:
      known = [s for action in parser._actions for s in action.option_strings]
      raise ValueError(f'{rest[0]!r} is not a flag; {suggest(rest[0].partition("=")[0], known)}')
    return args
  if 'study' in args:
    args.file, found = args.study, studies.load(args.study)
    args.study = dataclasses.replace(found, config=assigned(complete(found.config), rest))
  else:
    args.config = with_overrides(load_config(args.config), rest)
  return args


def with_overrides(config: ConfigDict, argv: Sequence[str]) -> ConfigDict:
  """The resolved config with `--config.path=value` (or `--config.path value`) words in it."""
  return resolve_config(assigned(config, argv))


def assigned(config: ConfigDict, argv: Sequence[str]) -> ConfigDict:
  """The config with such words in it, as it was not resolved."""
  words = iter(argv)
  for word in words:
    if not word.startswith('--config.'):
      raise ValueError(f'{word!r} is not a flag; config fields are set by --config.path.to.field=value')
    path, equals, text = word.removeprefix('--config.').partition('=')
    text = text if equals else next(words, None)
    if text is None:
      raise ValueError(f'{word} needs a value: {word}=…')
    assign_text(config, path, text)
  return config
