"""Speed-up of training several runs in one vmapped step over training them one after another.

A decoder of 2 layers, width 128, 4 heads on 8 rows of 128 bytes: the step of a single run, and the compiled
step of 2, 4 and 8 runs, as `tfm ablate` trains seeds. Measurements alternate; ratios are ratios of medians.
The time saved by compiling once instead of once per run is not included.
"""

import statistics
import sys

from rich import box
from rich.console import Console
from rich.table import Table

from tfm.benchmark.beside_torch import rounds_argument
from tfm.benchmark.process import describe_machine, measure
from tfm.data.progress_bar import track


RUNS = 1, 2, 4, 8


arguments = rounds_argument


def main(args):
  if args.rounds < 1:
    raise ValueError(f'--rounds={args.rounds} must be at least 1')
  seconds_of = {runs: [] for runs in RUNS}
  for runs in track(list(RUNS) * args.rounds, 'benchmark', len(RUNS) * args.rounds):
    seconds_of[runs].append(measure('tfm.benchmark.ensemble', str(runs))['seconds'])
  table = Table(title=describe_machine(), title_justify='left', box=box.SIMPLE)
  for column in ('runs', 'ms per step', 'ms per step and run', 'speed-up'):
    table.add_column(column, justify='right')
  single = statistics.median(seconds_of[1])
  for runs, seconds in seconds_of.items():
    step = statistics.median(seconds)
    table.add_row(str(runs), f'{1000 * step:.1f}', f'{1000 * step / runs:.1f}', f'{single * runs / step:.2f}')
  Console(width=None if sys.stdout.isatty() else 120).print(table)
