"""Measurements of tfm and of PyTorch in alternation, and the table of both."""

import importlib.util
import statistics
import sys
from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table

from tfm.benchmark.process import describe_machine, measure
from tfm.data.progress_bar import track


FIELDS = 'tokens_per_second', 'peak_memory_mib'
COLUMNS = '', 'tfm tokens/s', 'PyTorch tokens/s', 'ratio', 'tfm peak MiB', 'PyTorch peak MiB', 'ratio'


def rounds_argument(parser):
  parser.add_argument('--rounds', type=int, default=3, metavar='N', help='measurements of each (default: 3)')


def compare(measurements: Mapping[str, tuple[str, ...]], tfm: str, torch: str, rounds: int) -> None:
  """Prints medians of `rounds` processes each, which alternate, and ratios of medians.

  Args:
    measurements: what the row of a table says → the arguments of both modules.
    tfm: the module that measures tfm; torch: that of PyTorch, left out where it is not installed.
  """
  if rounds < 1:
    raise ValueError(f'--rounds={rounds} must be at least 1')
  with_torch = all(importlib.util.find_spec(name) for name in ('torch', 'transformers'))
  modules = (tfm, torch) if with_torch else (tfm,)
  runs = [(name, module) for name in measurements for _ in range(rounds) for module in modules]
  results = {}
  for name, module in track(runs, 'benchmark', len(runs)):
    results.setdefault((name, module), []).append(measure(module, *measurements[name]))

  table = Table(title=describe_machine(), title_justify='left', box=box.SIMPLE)
  for column in COLUMNS:
    table.add_column(column, justify='right')
  for name in measurements:
    cells = []
    for field in FIELDS:
      values = [statistics.median(r[field] for r in results[name, module]) for module in modules]
      cells += [f'{v:,.0f}' for v in values] + ([f'{values[0] / values[1]:.2f}'] if with_torch else ['', ''])
    table.add_row(name, *cells)
  Console(width=None if sys.stdout.isatty() else 120).print(table)
  if not with_torch:
    print('PyTorch and transformers are not installed; `make oracle` installs them.')
