"""Follows a run that another process trains, as that process shows it; ends when the process does.

  tfm watch runs/plays
  tfm watch runs/plays --json

On a terminal the bar of `tfm train` appears, elsewhere its lines. Of a run that is not running it prints the
state and the best loss. Ctrl-C ends it and leaves the run alone.
"""

import argparse
import contextlib
import pathlib

from tfm.commands.cli import add_display_flags


USES_JAX = False


def arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('workdir', metavar='DIR', help='the folder of the run')
  add_display_flags(parser)


def main(args: argparse.Namespace) -> None:
  from tfm.runs.watch import watch_run

  with contextlib.suppress(KeyboardInterrupt):
    watch_run(pathlib.Path(args.workdir))
