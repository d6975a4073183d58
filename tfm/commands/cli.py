"""The console script: `tfm COMMAND --flags`; every other file of this folder, except `_name.py`, is one.

A command is a module with a docstring, `arguments(parser)` and `main(args)`. `args` holds, besides the
command's own flags:

  words      the whole command line
  config     if the command declares `--config`: the resolved config (without the flag the default one) with
             every `--config.path.to.field=value`
  overrides  if the module sets `OVERRIDES` to a prefix: the unparsed words, of which those with dashes must
             begin with it, such as `--config.path=value`; of a run that is read, they set existing fields
  study      if the command declares `study`: the study with such overrides in its base config; `file` is
             the path that named it

A command may refuse flags before JAX is imported, in `validate(args)`, where the config is not yet resolved.
`add_run_flags` names a run to read.
A command that computes nothing sets `USES_JAX` to False. One with `add_process_flags` runs in several
processes at once, which compute together; the first one prints. `add_display_flags` lets a command show JSON
lines, or only errors.

Help and the refusal of a mistyped word come at once: this file, and the files of commands, import JAX and
other packages that take a while in the functions that need them.
"""

import argparse
import contextlib
import dataclasses
import importlib
import logging
import os
import pathlib
import pkgutil
import select
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from ml_collections import ConfigDict

import tfm.commands
from tfm import variant_folders
from tfm.commands._words import note_repeated, refuse_strays, split_overrides
from tfm.config.field_docs import describe_field
from tfm.config.library import summary
from tfm.config.load import load_config
from tfm.config.overlay import assign_text, complete
from tfm.config.schema import checked_fields, default_config, field_ranges, leaves, validate_fields
from tfm.errors import (
  INVALID_INPUT_STATUS,
  MachineFailure,
  abridge,
  describe,
  prefixing,
  read_json_object,
  require,
  suggest,
)
from tfm.parallel import timeouts
from tfm.runs.summary import require_run
from tfm.spec import format_range
from tfm.studies import study
from tfm.studies.study import Study


def command_names() -> tuple[str, ...]:
  """The names of all commands."""
  names = (info.name for info in pkgutil.iter_modules(tfm.commands.__path__))
  return tuple(name for name in names if name != 'cli' and not name.startswith('_'))


def main(argv: Sequence[str] | None = None) -> int:
  """Runs one command; returns the exit status: 0, 1 for a failure of the machine, or 2 for invalid input.

  It ends without a word, with 1, where the reader of its output has gone, as in `tfm … | head`.
  """
  try:
    try:
      return run_command(argv)
    finally:
      sys.stdout.flush()
  except BrokenPipeError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the exit would flush it, and fail
    return 1


@variant_folders.noting_origin()
def run_command(argv: Sequence[str] | None) -> int:
  """Runs one command; returns the exit status.

  Raises:
    BrokenPipeError: if the reader of stdout has gone.
  """
  name, *rest = list(sys.argv[1:] if argv is None else argv) or ['--help']
  if name in ('--help', '-h'):
    print('usage: tfm COMMAND [--flag=value …]; tfm COMMAND --help lists the flags\n')
    width = max(map(len, command_names()))
    for command in command_names():
      print(f'  {command:{width}}  {summary(pathlib.Path(tfm.commands.__path__[0], f"{command}.py"))}')
    return 0
  if name == '--version':
    print(f'tfm {tfm.__version__}')
    return 0
  try:
    if name not in command_names():
      raise ValueError(f'{name!r} is not a command; {suggest(name, command_names())}')
    command = importlib.import_module(f'tfm.commands.{name}')
    variant_folders.folders()  # what the environment names is read before any field
    args = parse_arguments(name, command, rest)
    if 'reads_run' in args:
      require_run(args.workdir)
      validate_run_overrides(args.workdir, args.overrides)
    if hasattr(command, 'validate'):
      command.validate(args)
    if 'config' in args and not hasattr(command, 'OVERRIDES'):
      from tfm.config.resolve import resolve_config

      args.config = resolve_config(args.config)
    if getattr(command, 'USES_JAX', True):
      configure_jax()
    configure_logging()
    from tfm.training.progress_line import select_display

    with select_display(getattr(args, 'display', None)), joining_processes(name, args):
      return command.main(args) or 0
  except (ValueError, OSError) as error:
    # Invalid input is reported in one sentence; TFM_TRACEBACK=1 shows where it was raised.
    if os.environ.get('TFM_TRACEBACK') or isinstance(error, BrokenPipeError) and not is_read(sys.stdout):
      raise
    origin = variant_folders.describe_origin(error)
    print(
      f'tfm {abridge(name)}: {abridge(describe(error))}', *filter(None, [origin]), sep='\n', file=sys.stderr
    )
    if not isinstance(error, MachineFailure):
      return INVALID_INPUT_STATUS
    # Writers that fail again while the process ends would bury the sentence.
    threading.excepthook = sys.unraisablehook = lambda _: None
    logging.getLogger('asyncio').disabled = True
    warnings.simplefilter('ignore')
    return 1


def is_read(file: TextIO) -> bool:
  """Whether what is written to a file goes somewhere: False for a pipe whose reader has gone."""
  poll = select.poll()
  poll.register(file, 0)  # 0: errors alone
  return not poll.poll(0)


def add_display_flags(parser: argparse.ArgumentParser) -> None:
  """Flags that say how a command shows what it does."""
  group = parser.add_mutually_exclusive_group()
  for name, meaning in (
    ('quiet', 'show only errors and results'),
    ('json', 'show messages and metrics as JSON, one object a line, on stdout'),
  ):
    group.add_argument(f'--{name}', dest='display', action='store_const', const=name, help=meaning)


def add_run_flags(parser: argparse.ArgumentParser) -> None:
  """Flags that name the run to read, which must exist, and its checkpoints."""
  parser.set_defaults(reads_run=True)
  parser.add_argument(
    '--workdir', required=True, metavar='DIR', help='directory of a trained run, or of an imported model'
  )
  parser.add_argument(
    '--step', default='last', metavar='N|best|last', help='which checkpoint (default: last)'
  )
  parser.add_argument(
    '--average',
    type=int,
    metavar='N',
    help='average the last N checkpoints (default: config.decoding.average_checkpoints)',
  )


def add_process_flags(parser: argparse.ArgumentParser) -> None:
  """Flags by which several processes, each with its own devices, run a command together."""
  parser.add_argument(
    '--processes',
    default='1',
    metavar='N',
    help="number of processes; 'auto': from the environment (Slurm, TPU pod, Kubernetes)",
  )
  parser.add_argument('--process', type=int, metavar='I', help='index of this process, from 0')
  parser.add_argument('--coordinator', metavar='HOST:PORT', help='address of process 0')
  parser.add_argument(
    '--heartbeat_timeout',
    type=int,
    metavar='SECONDS',
    help='timeout after which a silent process counts as lost and all others exit '
    f'(default: {timeouts.HEARTBEAT})',
  )
  parser.add_argument(
    '--connect_timeout',
    type=int,
    metavar='SECONDS',
    help=f'timeout for all processes to connect at the start (default: {timeouts.CONNECT})',
  )


@contextlib.contextmanager
def joining_processes(name: str, args: argparse.Namespace) -> Iterator[None]:
  """Connects the processes of a command with `add_process_flags`; only the first one prints in the block.

  Raises:
    ValueError: for inconsistent flags.
  """
  if 'processes' not in args:
    yield
    return
  from tfm.parallel import processes
  from tfm.training.progress_line import console

  processes.connect(
    name, args.processes, args.process, args.coordinator, args.heartbeat_timeout, args.connect_timeout
  )
  with contextlib.ExitStack() as stack:
    stack.enter_context(processes.abort_all_on_error(name, (ValueError, OSError)))
    if not processes.is_main_process():
      console.quiet = True
      nowhere = stack.enter_context(open(os.devnull, 'w', encoding='utf-8'))
      stack.enter_context(contextlib.redirect_stdout(nowhere))
    yield


def format_field(field: tuple[str, Any]) -> str:
  """A line of `--help` for (path, default), with the range of the field and its meaning."""
  path, default = field
  limits = format_range(field_ranges().get(path))
  flag = f'--config.{path}={default!r}' + (f'  [{limits}]' if limits else '')
  return f'  {flag:48}  {describe_field(path)}'


def configure_jax() -> None:
  """Makes rank promotion an error, caches compiled programs on disk, returns what compilers have freed."""
  import jax

  from tfm.data import cache
  from tfm.parallel import freed_memory

  freed_memory.return_after_compiling()
  jax.config.update('jax_numpy_rank_promotion', 'raise')
  if not jax.config.jax_compilation_cache_dir:
    jax.config.update('jax_compilation_cache_dir', str(cache.directory() / 'jax'))


def configure_logging() -> None:
  """Shows what tfm logs, such as the chosen kernel, on the console."""
  from tfm.training.progress_line import OnceFilter

  log = logging.getLogger('tfm')
  log.setLevel(logging.INFO)
  if not log.handlers:
    handler = ConsoleHandler(logging.INFO)
    handler.addFilter(OnceFilter())
    log.addHandler(handler)
    log.propagate = False  # else the root logger's handlers would show it again


class ConsoleHandler(logging.Handler):
  """Prints log records as the commands print their own lines."""

  def emit(self, record):
    from tfm.training.progress_line import print_status

    print_status(record.getMessage())


def parse_arguments(name: str, command, argv: Sequence[str]) -> argparse.Namespace:
  """Parses the command line; loads `config` or `study` if the command declares one, and resolves neither."""
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
      + '\n'.join(map(format_field, leaves(default_config())))
    )
  parser.add_argument(
    '--variants',
    action='append',
    default=[],
    metavar='FOLDER',
    help='a folder with variants of your own, such as FOLDER/positions/mine.py; may be repeated',
  )
  own, overrides = split_overrides(argv)
  note_repeated(parser, own, overrides)
  prefix = getattr(command, 'OVERRIDES', '--config.' if fields else None)
  known = [name for action in parser._actions for name in action.option_strings]
  # Argparse would say of a misspelt flag only that another is missing. Subcommands have flags of their own.
  if parser._subparsers is None:
    named = [word for word in own if word.startswith('--') and '=' in word]
    refuse_strays([word for word in named if word.partition('=')[0] not in known], known, prefix)
  args, rest = parser.parse_known_args(own, argparse.Namespace(words=[name, *argv]))
  rest += overrides
  require(
    getattr(args, 'workdir', None) != '', '--workdir= is empty (an unset shell variable?); name a folder'
  )
  for folder in args.variants:
    variant_folders.add_folder(folder, '--variants=')
  refuse_strays(rest, known, prefix)
  args.overrides = rest
  if not fields or hasattr(command, 'OVERRIDES'):
    return args
  if 'study' in args:
    args.file, args.study = args.study, load_study(args.study, rest)
  else:
    config = default_config() if args.config is None else load_config(args.config)
    args.config = assign_overrides(config, rest)
  return args


def validate_flag(name: str, field: Any, value: str) -> None:
  """Raises ValueError for a flag whose value names what is not there; imports neither JAX nor a variant.

  Args:
    field: what it may name: a config field that has the same names, or one of `tfm.config.names`.
  """
  with prefixing(f'--{name}='):
    (checked_fields()[field] if isinstance(field, str) else field).validate(value)


def validate_overrides(config: ConfigDict, argv: Sequence[str]) -> None:
  """Raises ValueError for words `--config.path=value` that name what is not there, as `validate_flag`."""
  validate_fields(assign_overrides(config, argv))


def validate_run_overrides(workdir: str, argv: Sequence[str]) -> None:
  """`validate_overrides` of the config of a run."""
  file = pathlib.Path(workdir, 'config.json')
  if argv and file.is_file():
    validate_overrides(complete(read_json_object(file, 'the config of a run')), argv)


def load_study(file: str, argv: Sequence[str]) -> Study:
  """The study of a file, with words `--config.path=value` applied to its base config, which is complete.

  Raises:
    ValueError: as `tfm.studies.study.validate_names`.
  """
  loaded = study.load_study(file)
  changed = dataclasses.replace(loaded, config=assign_overrides(complete(loaded.config), argv))
  study.validate_names(changed)
  return changed


def resolve_with_overrides(config: ConfigDict, argv: Sequence[str]) -> ConfigDict:
  """Applies words `--config.path=value`, then resolves the config."""
  config = assign_overrides(config, argv)
  from tfm.config.resolve import resolve_config

  return resolve_config(config)


def assign_overrides(config: ConfigDict, argv: Sequence[str]) -> ConfigDict:
  """Applies such words to a config that is not yet resolved; returns it."""
  for word in argv:
    if not word.startswith('--config.'):
      raise ValueError(f'{word!r} is not a flag; set config fields by --config.path.to.field=value')
    path, equals, text = word.removeprefix('--config.').partition('=')
    if not equals:
      raise ValueError(f'{word} needs a value: {word}=…')
    assign_text(config, path, text)
  return config
