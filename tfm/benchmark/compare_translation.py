"""Beam search beside PyTorch's Marian of the same shape and with the same parameters.

Both translate a whole split of a run's data in float32, in batches of 64 sentences of similar length, each
with all cores, as `generate(num_beams=4)` of `transformers` does: the score is the mean log-probability per
token. A target may be config.decoding.max_extra_tokens longer than its source; Marian, which has one limit
per batch, takes the longest. tfm and PyTorch alternate; the ratio is the ratio of medians. The first pass of
each process, which compiles, is not counted. Where translations differ, Marian may have stopped earlier:
`tfm/benchmark/translation_torch.py` explains when.
"""

import argparse
import importlib.util
import json
import pathlib
import statistics
import sys

from rich import box
from rich.console import Console
from rich.table import Table

from tfm.benchmark.beside_torch import rounds_argument
from tfm.benchmark.process import describe_machine, measure
from tfm.config.overlay import complete
from tfm.data.progress_bar import track


TFM, TORCH = 'tfm.benchmark.translation', 'tfm.benchmark.translation_torch'


def arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--workdir', required=True, metavar='DIR', help='the run of a trained encoder-decoder')
  parser.add_argument(
    '--split', default='test', metavar='NAME', help='the split to translate (default: test)'
  )
  parser.add_argument('--beams', type=int, default=4, metavar='K', help='beam size (default: 4)')
  rounds_argument(parser)


def main(args: argparse.Namespace) -> None:
  from tfm.benchmark.translation_torch import validate_marian_shape
  from tfm.config.resolve import resolve_config

  for name in ('beams', 'rounds'):
    if getattr(args, name) < 1:
      raise ValueError(f'--{name}={getattr(args, name)} must be at least 1')
  # Models that Marian cannot represent are rejected before anything is measured.
  validate_marian_shape(
    resolve_config(
      complete(json.loads((pathlib.Path(args.workdir) / 'config.json').read_text(encoding='utf-8')))
    )
  )
  with_torch = all(importlib.util.find_spec(name) for name in ('torch', 'transformers'))
  modules = {'tfm': TFM} | ({'PyTorch': TORCH} if with_torch else {})
  results = {name: [] for name in modules}
  for name in track(list(modules) * args.rounds, 'benchmark', len(modules) * args.rounds):
    results[name].append(measure(modules[name], args.workdir, args.split, str(args.beams)))

  table = Table(title=describe_machine(), title_justify='left', box=box.SIMPLE)
  for column in ('', 'sentences', 'seconds', 'sentences/s', 'BLEU'):
    table.add_column(column, justify='right')
  seconds = {
    name: statistics.median(result['seconds'] for result in measured) for name, measured in results.items()
  }
  for name, (first, *_) in results.items():
    count = len(first['texts'])
    table.add_row(
      name, f'{count:,}', f'{seconds[name]:.2f}', f'{count / seconds[name]:.1f}', f'{first["bleu"]:.2f}'
    )
  Console(width=None if sys.stdout.isatty() else 120).print(table)
  if not with_torch:
    print('PyTorch and transformers are not installed; `make oracle` installs them.')
    return
  same = sum(a == b for a, b in zip(*(measured[0]['texts'] for measured in results.values())))
  print(
    f'speed ratio: {seconds["PyTorch"] / seconds["tfm"]:.2f}; {same:,} of {count:,} translations are equal'
  )
