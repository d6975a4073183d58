"""Training and decoding speed beside PyTorch's GPT-2, in one run.

A GPT-2-shaped model (6 layers, width 384, 6 heads, context 256, vocabulary 8192, float32, no dropout)
trains with AdamW on batches of 16 rows, and decodes 224 tokens after prompts of 32 with its key/value cache,
greedily and by beam search. tfm and PyTorch alternate; ratios are ratios of medians. Peak memory is the
largest resident size of the process, imports included.
"""

import importlib.util
import statistics
import sys

from rich import box
from rich.console import Console
from rich.table import Table

from tfm.benchmark.process import describe_machine, measure
from tfm.data.progress_bar import track


MEASUREMENTS = {
  'training': ('training',),
  'decoding 1 row': ('decoding', '1', '1'),
  'decoding 8 rows': ('decoding', '8', '1'),
  'four beams, 1 row': ('decoding', '1', '4'),
  'four beams, 8 rows': ('decoding', '8', '4'),
}
TFM, TORCH = 'tfm.benchmark.gpt2', 'tfm.benchmark.gpt2_torch'


def arguments(parser):
  parser.add_argument('--rounds', type=int, default=3, metavar='N', help='measurements of each (default: 3)')


def main(args):
  if args.rounds < 1:
    raise ValueError(f'--rounds={args.rounds} must be at least 1')
  with_torch = all(importlib.util.find_spec(name) for name in ('torch', 'transformers'))
  modules = (TFM, TORCH) if with_torch else (TFM,)
  runs = [(name, module) for name in MEASUREMENTS for _ in range(args.rounds) for module in modules]
  results = {}
  for name, module in track(runs, 'benchmark', len(runs)):
    results.setdefault((name, module), []).append(measure(module, *MEASUREMENTS[name]))

  table = Table(title=describe_machine(), title_justify='left', box=box.SIMPLE)
  for column in (
    '',
    'tfm tokens/s',
    'PyTorch tokens/s',
    'ratio',
    'tfm peak MiB',
    'PyTorch peak MiB',
    'ratio',
  ):
    table.add_column(column, justify='right')
  for name in MEASUREMENTS:
    cells = []
    for field in ('tokens_per_second', 'peak_memory_mib'):
      values = [statistics.median(r[field] for r in results[name, module]) for module in modules]
      cells += [f'{v:,.0f}' for v in values] + ([f'{values[0] / values[1]:.2f}'] if with_torch else ['', ''])
    table.add_row(name, *cells)
  Console(width=None if sys.stdout.isatty() else 120).print(table)
  if not with_torch:
    print('PyTorch and transformers are not installed; `make oracle` installs them.')
