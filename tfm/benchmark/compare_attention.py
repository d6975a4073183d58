"""Time and memory of attention against length: kernels × variants, and all mixers.

One row, 8 heads of 64 channels (width 512), float32, causal; forward, and forward with backward. Memory
is how far the process's resident size rises meanwhile. What does not fit into the memory that is free is
told so. Every line is written to FILE.jsonl as soon as it is measured; a run that is asked again measures
only what is missing there. The mixers' curves are drawn to FILE.png, their exponents fitted from 2048 on.
"""

import argparse
import importlib.util
import json
import pathlib
import sys

from rich import box
from rich.console import Console
from rich.table import Table

from tfm.benchmark import attention, attention_torch, curves
from tfm.benchmark.process import OutOfMemory, machine, measure
from tfm.data.progress import track


LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
OURS, THEIRS = 'tfm.benchmark.attention', 'tfm.benchmark.attention_torch'
PASSES = {'forward': 'forward', 'both': 'forward + backward'}


def arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    '--lengths',
    type=lambda text: tuple(map(int, text.split(','))),
    default=LENGTHS,
    metavar='N,N,…',
    help=f'tokens of the row (default: {",".join(map(str, LENGTHS))})',
  )
  parser.add_argument('--only', choices=('kernels', 'mixers'), help='one half of it')
  parser.add_argument(
    '--out', default='attention', metavar='FILE', help='FILE.jsonl and FILE.png (default: attention)'
  )


def main(args: argparse.Namespace) -> None:
  for length in args.lengths:
    if length < 1:
      raise ValueError(f'--lengths names {length}; a row has at least 1 token')
  asked = runs(args.lengths, args.only, importlib.util.find_spec('torch') is not None)
  known = pathlib.Path(f'{args.out}.jsonl')
  results = read(known)
  for run in track(asked, 'benchmark', len(asked)):
    if run not in results:
      results[run] = measured(run)
      with known.open('a') as file:
        file.write(json.dumps(dict(run=run, machine=machine(), result=results[run])) + '\n')

  console = Console(width=None if sys.stdout.isatty() else 160)
  console.print(machine(), highlight=False)
  if args.only != 'mixers':
    for what in PASSES:
      console.print(kernel_table(results, args.lengths, what))
  if args.only != 'kernels':
    for what in PASSES:
      console.print(mixer_table(results, args.lengths, what))
    panels = {
      f'{label}, {unit}': {
        name: curve(results, ('mixer', name), args.lengths, what, field) for name in attention.MIXERS
      }
      for what, label in PASSES.items()
      for field, unit in (('ms', 'ms'), ('mib', 'MiB'))
    }
    curves.draw(panels, machine(), f'{args.out}.png')
    console.print(f'curves: {args.out}.png', highlight=False)


Run = tuple[str, ...]
Results = dict[Run, dict]


def runs(lengths: tuple[int, ...], only: str | None, with_torch: bool) -> list[Run]:
  """(module, arguments…) of every measurement."""
  made = []
  for length in map(str, lengths):
    if only != 'mixers':
      for variant in attention.VARIANTS:
        made += [(OURS, 'kernel', kernel, variant, length) for kernel in attention.KERNELS]
        if with_torch and variant in attention_torch.VARIANTS:
          made.append((THEIRS, variant, length))
    if only != 'kernels':
      made += [(OURS, 'mixer', mixer, length) for mixer in attention.MIXERS]
  return made


def measured(run: Run) -> dict:
  """What a run prints; {} where there is no memory for it."""
  try:
    return measure(*run)
  except OutOfMemory:
    return {}


def read(file: pathlib.Path) -> Results:
  """What an earlier call has measured here.

  Raises:
    ValueError: if it was measured on another machine or with other versions.
  """
  results = {}
  for line in file.read_text().splitlines() if file.exists() else ():
    entry = json.loads(line)
    if entry['machine'] != machine():
      raise ValueError(
        f'--out={file.stem} holds measurements of another machine ({entry["machine"]}); '
        'name another file, or delete it'
      )
    results[tuple(entry['run'])] = entry['result']
  return results


def curve(results: Results, run: Run, lengths: tuple[int, ...], what: str, field: str) -> curves.Curve:
  """length → value of a mixer or kernel, where it was to be had."""
  found = {length: (results.get((OURS, *run, str(length))) or {}).get(what) for length in lengths}
  return {length: entry[field] for length, entry in found.items() if entry}


def kernel_table(results: Results, lengths: tuple[int, ...], what: str) -> Table:
  """A line for each variant and length."""
  table = Table(title=f'kernels, {PASSES[what]}', title_justify='left', box=box.MARKDOWN)
  for column in (
    'variant',
    'length',
    'dense ms',
    'chunked ms',
    'PyTorch ms',
    'dense / chunked',
    'PyTorch / chunked',
    'dense MiB',
    'chunked MiB',
    'PyTorch MiB',
  ):
    table.add_column(column, justify='left' if column == 'variant' else 'right')
  for variant in attention.VARIANTS:
    for length in map(str, lengths):
      keys = {kernel: (OURS, 'kernel', kernel, variant, length) for kernel in attention.KERNELS}
      entries = [results.get(key) for key in (*keys.values(), (THEIRS, variant, length))]
      ms, mib = (
        [None if entry is None else (entry.get(what) or {}).get(field, 'no memory') for entry in entries]
        for field in ('ms', 'mib')
      )
      table.add_row(
        variant, length, *map(cell, ms), ratio(ms[0], ms[1]), ratio(ms[2], ms[1]), *map(cell, mib)
      )
  return table


def mixer_table(results: Results, lengths: tuple[int, ...], what: str) -> Table:
  """A line for each mixer: time by length, and the exponents of time and memory."""
  table = Table(title=f'mixers, {PASSES[what]}, ms', title_justify='left', box=box.MARKDOWN)
  for column in ('mixer', *map(str, lengths), 'exponent', 'MiB at the longest', 'exponent of memory'):
    table.add_column(column, justify='left' if column == 'mixer' else 'right')
  for name in attention.MIXERS:
    ms, mib = (curve(results, ('mixer', name), lengths, what, field) for field in ('ms', 'mib'))
    table.add_row(
      name,
      *(cell(ms.get(length, 'no memory')) for length in lengths),
      slope(ms),
      cell(mib.get(lengths[-1], 'no memory')),
      slope(mib),
    )
  return table


def slope(values: curves.Curve) -> str:
  fitted = curves.exponent(values)
  return '' if fitted is None else f'{fitted:.2f}'


def cell(value: float | str | None) -> str:
  """A number as one reads it; '–' for what was not measured."""
  return '–' if value is None else value if isinstance(value, str) else f'{value:,.0f}'


def ratio(a: float | str | None, b: float | str | None) -> str:
  return f'{a / b:.2f}' if isinstance(a, float) and isinstance(b, float) else '–'
