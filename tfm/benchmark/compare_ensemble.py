"""How much faster several runs of one shape train together than one after another.

A decoder of 2 layers, width 128, 4 heads on 8 rows of 128 bytes: the step of one run alone, and the one compiled step of
2, 4 and 8 runs, as `tfm ablate` trains seeds. They take turns; a ratio is that of the medians. What is saved beside, to
compile once and not for each run, is not in it.
"""

import statistics
import sys

from rich import box
from rich.console import Console
from rich.table import Table

from tfm.benchmark.process import machine, measure
from tfm.data.progress import track


RUNS = 1, 2, 4, 8


def arguments(parser):
  parser.add_argument(
    '--rounds', type=int, default=3, metavar='N', help='how often each is measured (default: 3)'
  )


def main(args):
  if args.rounds < 1:
    raise ValueError(f'--rounds={args.rounds} must be at least 1')
  found = {runs: [] for runs in RUNS}
  for runs in track(list(RUNS) * args.rounds, 'benchmark', len(RUNS) * args.rounds):
    found[runs].append(measure('tfm.benchmark.ensemble', str(runs))['seconds'])
  table = Table(title=machine(), title_justify='left', box=box.SIMPLE)
  for column in ('runs together', 'ms a step', 'ms a step and run', 'speed-up'):
    table.add_column(column, justify='right')
  alone = statistics.median(found[1])
  for runs, seconds in found.items():
    step = statistics.median(seconds)
    table.add_row(str(runs), f'{1000 * step:.1f}', f'{1000 * step / runs:.1f}', f'{alone * runs / step:.2f}')
  Console(width=None if sys.stdout.isatty() else 120).print(table)
