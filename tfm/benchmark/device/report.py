"""The report of `tfm benchmark device`: a table of each group."""

import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tfm.benchmark.device.cells import Cell


# The number that ranks the cells of a group, and whether more is better.
HEADLINES = {
  'matrix products': ('tflops', 'TFLOP/s'),
  'copies': ('gbps', 'GB/s'),
  'training step': ('tokens_per_second', 'tokens/s'),
  'errors': ('worst', 'relative error'),
  'kernels': ('both_ms', 'ms, forward and backward'),
  'mixers': ('both_ms', 'ms, forward and backward'),
  'decoding': ('tokens_per_second', 'new tokens/s'),
  'profile': ('mib', 'MiB'),
}
Result = tuple[Cell, Mapping[str, Any]]


def write_report(folder: pathlib.Path, results: Sequence[Result], origin: Sequence[str]) -> None:
  """Writes report.md."""
  lines = ['# Benchmark of a device', '', *itertools.chain(*((line, '') for line in origin))]
  for group, found in itertools.groupby(results, key=lambda result: result[0].group):
    lines += [f'## {group[:1].upper()}{group[1:]}', '', *tabulate([*found]), '']
  (folder / 'report.md').write_text('\n'.join(lines), encoding='utf-8')


def tabulate(results: Sequence[Result]) -> list[str]:
  """Lines of a Markdown table: the arguments in which the cells differ, and their numbers."""
  settings = [describe(cell) for cell, _ in results]
  names = [*dict.fromkeys(itertools.chain(*settings))]
  names = [name for name in names if len({str(each.get(name)) for each in settings}) > 1] or names[:1]
  numbers = [*dict.fromkeys(name for _, found in results for name in found if name != 'error')]
  rows = [
    [each.get(name, '') for name in names]
    + ([found['error']] if 'error' in found else [format_number(found.get(name)) for name in numbers])
    for each, (_, found) in zip(settings, results)
  ]
  columns = names + [name.replace('_', ' ') for name in numbers]
  width = max(len(columns), *map(len, rows))
  rows = [
    [*columns, *[''] * (width - len(columns))],
    ['---'] * width,
    *(row + [''] * (width - len(row)) for row in rows),
  ]
  return [f'| {" | ".join(map(str, row))} |' for row in rows]


def describe(cell: Cell) -> dict[str, Any]:
  """The settings of a cell in words."""
  by = 'PyTorch' if 'torch' in cell.packages else 'tfm'
  return dict(by=by) | {
    name: ' '.join(f'{k}={v}' for k, v in value.items()) if isinstance(value, Mapping) else value
    for name, value in cell.arguments.items()
  }


def format_number(value: float | None) -> str:
  """Three significant digits, with separators; '–' for none."""
  if value is None:
    return '–'
  return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.3g}'
