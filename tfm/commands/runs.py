"""Lists the runs of a folder: state, step, best validation loss, and what of the config differs.

  tfm runs
  tfm runs runs/position --json

A run is running (a process holds its lock), finished, stopped (the same command resumes it), diverged, or
imported (published weights). The last column has the config fields in which a run differs from most of the
others.
"""

import argparse
import json
import pathlib

from tfm.errors import require


USES_JAX = False


def arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    'folder', nargs='?', default='runs', metavar='DIR', help='a folder of runs or studies (default: runs)'
  )
  parser.add_argument('--json', action='store_true', help='print one JSON object a line')


def main(args: argparse.Namespace) -> None:
  from rich.text import Text

  from tfm.analysis.console import new_table, wide_console
  from tfm.runs.summary import list_changes, summarize_runs
  from tfm.training.progress_line import print_status

  folder = pathlib.Path(args.folder)
  runs, unreadable = summarize_runs(folder)
  for sentence in unreadable:
    print_status(sentence)
  require(
    bool(runs),
    f'no run in {folder} can be read'
    if unreadable
    else f'{folder} holds no run; tfm train --workdir={folder}/NAME makes one',
  )
  rich_table = new_table('', 'run', 'state', '>step', '>best loss', '>at step', 'differs in')
  for run, changes in zip(runs, list_changes(runs)):
    name = str(run.workdir.relative_to(folder)) if run.workdir != folder else str(folder)
    if args.json:
      best = dict(zip(('best_step', 'best_loss'), run.best or ()))
      fields = dict(run=str(run.workdir), state=run.state, step=run.step, steps=run.steps, **best)
      print(json.dumps(fields | dict(changes=changes), ensure_ascii=False))
      continue
    at, loss = (f'{run.best[0]:,}', f'{run.best[1]:.4g}') if run.best else ('–', '–')
    differs = ' '.join(f'{path}={value!r}' for path, value in changes.items())
    cells = name, run.state, f'{run.step:,}/{run.steps:,}', loss, at, differs
    rich_table.add_row(*map(Text, cells))  # Text: a value may look like rich's markup
  if not args.json:
    wide_console().print(rich_table)
