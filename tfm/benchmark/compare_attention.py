"""Time and memory of attention against length: kernels × variants, and all mixers.

One row, 8 heads of 64 channels (width 512), float32, causal; forward, and forward with backward. Memory is
the rise of the process's resident size during the computation; "no memory" marks what does not fit into free
memory. Each measurement is appended to FILE.jsonl at once; the same command run again measures only what is
missing. The mixers' curves are drawn to FILE.png, with exponents fitted from length 2048 on.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from tfm.benchmark import attention, attention_torch
from tfm.benchmark.process import OutOfMemory, describe_machine, measure
from tfm.data.progress_bar import track
from tfm.errors import require, suggest


if TYPE_CHECKING:
  from tfm.benchmark import curves


LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
TFM, TORCH = 'tfm.benchmark.attention', 'tfm.benchmark.attention_torch'
PASSES = {'forward': 'forward', 'both': 'forward + backward'}


def arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    '--lengths',
    type=lambda text: tuple(map(int, text.split(','))),
    default=LENGTHS,
    metavar='N,N,…',
    help=f'tokens of the row (default: {",".join(map(str, LENGTHS))})',
  )
  parser.add_argument(
    '--cases',
    type=lambda text: tuple(text.split(',')),
    default=tuple(attention.VARIANTS),
    metavar='NAME,NAME,…',
    help=f'cases of the kernels (default: {",".join(attention.VARIANTS)})',
  )
  parser.add_argument('--only', choices=('kernels', 'mixers'), help='measure kernels only, or mixers only')
  parser.add_argument(
    '--to', required=True, metavar='FILE', help='FILE.jsonl for the measurements, FILE.png for the curves'
  )


def main(args: argparse.Namespace) -> None:
  from tfm.benchmark import curves  # first: without the extra [plots] nothing is measured

  for length in args.lengths:
    if length < 1:
      raise ValueError(f'--lengths contains {length}; a row has at least 1 token')
  for name in args.cases:
    require(name in attention.VARIANTS, f'--cases: {name!r} is unknown; {suggest(name, attention.VARIANTS)}')
  with_torch = importlib.util.find_spec('torch') is not None
  measurements = list_measurements(args.lengths, args.only, with_torch, args.cases)
  log = pathlib.Path(f'{args.to}.jsonl')
  results = read_results(log)
  for run in track(measurements, 'benchmark', len(measurements)):
    if run not in results:
      results[run] = measure_or_empty(run)
      with log.open('a', encoding='utf-8') as file:
        file.write(json.dumps(dict(run=run, machine=describe_machine(), result=results[run])) + '\n')

  console = Console(width=None if sys.stdout.isatty() else 160)
  console.print(describe_machine(), highlight=False)
  if args.only != 'mixers':
    for what in PASSES:
      console.print(kernel_table(results, args.lengths, what, args.cases))
  if args.only != 'kernels':
    for what in PASSES:
      console.print(mixer_table(results, args.lengths, what))
    panels = {
      f'{label}, {unit}': {
        name: select_curve(results, ('mixer', name), args.lengths, what, field) for name in attention.MIXERS
      }
      for what, label in PASSES.items()
      for field, unit in (('ms', 'ms'), ('mib', 'MiB'))
    }
    curves.draw_curves(panels, describe_machine(), f'{args.to}.png')
    console.print(f'curves: {args.to}.png', highlight=False)


Run = tuple[str, ...]
Results = dict[Run, dict]


def list_measurements(
  lengths: Sequence[int], only: str | None, with_torch: bool, variants: Sequence[str]
) -> list[Run]:
  """(module, arguments…) of every measurement."""
  result = []
  for length in map(str, lengths):
    if only != 'mixers':
      for variant in variants:
        result += [(TFM, 'kernel', kernel, variant, length) for kernel in attention.KERNELS]
        if with_torch and variant in attention_torch.VARIANTS:
          result.append((TORCH, variant, length))
    if only != 'kernels':
      result += [(TFM, 'mixer', mixer, length) for mixer in attention.MIXERS]
  return result


def measure_or_empty(run: Run) -> dict:
  """The result of a measurement; {} if it does not fit into memory."""
  try:
    return measure(*run)
  except OutOfMemory:
    return {}


def read_results(file: pathlib.Path) -> Results:
  """The results of earlier calls on this machine.

  Raises:
    ValueError: if they were measured on another machine or with other versions.
  """
  results = {}
  for line in file.read_text(encoding='utf-8').splitlines() if file.exists() else ():
    entry = json.loads(line)
    if entry['machine'] != describe_machine():
      raise ValueError(
        f'--to={file.stem} holds measurements of another machine ({entry["machine"]}); '
        'choose another file, or delete this one'
      )
    results[tuple(entry['run'])] = entry['result']
  return results


def select_curve(results: Results, run: Run, lengths: tuple[int, ...], what: str, field: str) -> curves.Curve:
  """length → value of a mixer or kernel, where it was measured."""
  entries = {length: (results.get((TFM, *run, str(length))) or {}).get(what) for length in lengths}
  return {length: entry[field] for length, entry in entries.items() if entry}


def kernel_table(results: Results, lengths: Sequence[int], what: str, variants: Sequence[str]) -> Table:
  """One row per variant and length."""
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
  for variant in variants:
    for length in map(str, lengths):
      keys = {kernel: (TFM, 'kernel', kernel, variant, length) for kernel in attention.KERNELS}
      entries = [results.get(key) for key in (*keys.values(), (TORCH, variant, length))]
      ms, mib = (
        [None if entry is None else (entry.get(what) or {}).get(field, 'no memory') for entry in entries]
        for field in ('ms', 'mib')
      )
      table.add_row(
        variant,
        length,
        *map(format_cell, ms),
        format_ratio(ms[0], ms[1]),
        format_ratio(ms[2], ms[1]),
        *map(format_cell, mib),
      )
  return table


def mixer_table(results: Results, lengths: tuple[int, ...], what: str) -> Table:
  """One row per mixer: time by length, and the exponents of time and memory."""
  table = Table(title=f'mixers, {PASSES[what]}, ms', title_justify='left', box=box.MARKDOWN)
  for column in ('mixer', *map(str, lengths), 'exponent', 'MiB at the longest', 'exponent of memory'):
    table.add_column(column, justify='left' if column == 'mixer' else 'right')
  for name in attention.MIXERS:
    ms, mib = (select_curve(results, ('mixer', name), lengths, what, field) for field in ('ms', 'mib'))
    table.add_row(
      name,
      *(format_cell(ms.get(length, 'no memory')) for length in lengths),
      format_exponent(ms),
      format_cell(mib.get(lengths[-1], 'no memory')),
      format_exponent(mib),
    )
  return table


def format_exponent(values: curves.Curve) -> str:
  from tfm.benchmark import curves

  exponent = curves.fit_exponent(values)
  return '' if exponent is None else f'{exponent:.2f}'


def format_cell(value: float | str | None) -> str:
  """A rounded number; '–' if it was not measured."""
  return '–' if value is None else value if isinstance(value, str) else f'{value:,.0f}'


def format_ratio(a: float | str | None, b: float | str | None) -> str:
  return f'{a / b:.2f}' if isinstance(a, float) and isinstance(b, float) else '–'
