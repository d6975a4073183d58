"""How long a run takes to its first step: compilation by depth, and `tfm train` with and without caches.

The training step of a GPT-2 of width 384 with 12, 24 and 48 layers is lowered and compiled without a cache.
Then `tfm train --config=lm` is started with empty caches, and again with those that it has filled, and timed
from the start of the process to the metrics of its first step. Medians of processes.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from rich import box
from rich.console import Console
from rich.table import Table

from tfm.benchmark.beside_torch import rounds_argument
from tfm.benchmark.process import describe_machine, measure
from tfm.data.progress_bar import track


LAYERS = 12, 24, 48
CACHES = 'tfm train, empty caches', 'tfm train, its own caches'
COLUMNS = '', 'lowering, s', 'compiling, s', 'to the first step, s'


arguments = rounds_argument


def main(args):
  if args.rounds < 1:
    raise ValueError(f'--rounds={args.rounds} must be at least 1')
  table = Table(title=describe_machine(), title_justify='left', box=box.SIMPLE)
  for column in COLUMNS:
    table.add_column(column, justify='right')
  runs = [('tfm.benchmark.compilation', str(layers)) for layers in LAYERS for _ in range(args.rounds)]
  measured, started = {}, {name: [] for name in CACHES}
  for run in track([*runs, *range(args.rounds)], 'benchmark', len(runs) + args.rounds):
    if isinstance(run, tuple):
      measured.setdefault(run[1], []).append(measure(*run))
      continue
    with tempfile.TemporaryDirectory() as folder:
      for name in CACHES:
        started[name].append(seconds_to_first_step(folder, f'{folder}/{name}'))
  for layers, found in measured.items():
    seconds = (statistics.median(one[part] for one in found) for part in ('lowering', 'compiling'))
    table.add_row(f'{layers} layers', *(f'{s:.1f}' for s in seconds), '')
  for name, seconds in started.items():
    table.add_row(name, '', '', f'{statistics.median(seconds):.1f}')
  Console(width=None if sys.stdout.isatty() else 120).print(table)


def seconds_to_first_step(caches: str, workdir: str, config: str = 'lm') -> float:
  """From the start of `tfm train` to the metrics of its first step.

  Raises:
    RuntimeError: if it ends without them.
  """
  command = [sys.executable, '-m', 'tfm', 'train', f'--config={config}', f'--workdir={workdir}', '--json']
  command += [f'--config.{field}=1' for field in ('training.log_every', 'optimizer.warmup')]
  command += ['--config.training.steps=2']
  start, first = time.perf_counter(), None
  with subprocess.Popen(
    command,
    env={**os.environ, 'TFM_CACHE': caches},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    encoding='utf-8',
  ) as process:
    lines = []
    for line in process.stdout:
      lines.append(line)
      if first is None and line.startswith('{"event": "metrics"') and json.loads(line)['step'] == 1:
        first = time.perf_counter() - start
  if first is None:
    raise RuntimeError(f'{" ".join(command)} made no step:\n{"".join(lines)}')
  return first
