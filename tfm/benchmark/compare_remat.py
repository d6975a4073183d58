"""Memory and time of training steps that store everything, and of those without a policy of remat.

Without a policy a scan over layers stores what products, kernels, sums and recurrences give. Temporaries are
the compiler's; both steps of a model alternate eight times in one process, and the ratio is that of medians.
"""

import sys

from rich import box
from rich.console import Console
from rich.table import Table

from tfm.benchmark.process import describe_machine, measure
from tfm.data.progress_bar import track


COLUMNS = '', 'everything, MiB', 'without a policy, MiB', 'everything, ms', 'without a policy, ms', 'ratio'


def arguments(parser):
  del parser


def main(args):
  from tfm.benchmark.remat import MODELS

  del args
  table = Table(title=describe_machine(), title_justify='left', box=box.SIMPLE)
  for column in COLUMNS:
    table.add_column(column, justify='right')
  for name in track(MODELS, 'benchmark', len(MODELS)):
    everything, none = measure('tfm.benchmark.remat', name).values()
    table.add_row(
      name,
      *(f'{one["mib"]:,.0f}' for one in (everything, none)),
      *(f'{one["ms"]:,.0f}' for one in (everything, none)),
      f'{none["ms"] / everything["ms"]:.2f}',
    )
  Console(width=None if sys.stdout.isatty() else 120).print(table)
