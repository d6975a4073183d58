"""Measures one accelerator, the most valuable numbers first: each in a process of its own with a time limit.

Calibration (the rates that it reaches in matrix products and copies); the training step of a LLaMA of 1B by
kernel, rematerialization and compiler preset, and by PyTorch where it is installed; attention kernels by
variant and length, beside FlexAttention; mixers; decoding; a profile. Every number is appended to
DIR/results.jsonl at once with the clocks and the power; the same command run again measures only what is
missing, so several short calls add up. A cell that failed is tried again when its line is deleted.
DIR/report.md has tables, DIR/report.png bars.

--smoke runs every cell at a tiny size in this process: it shows that they run, and its numbers mean nothing.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time

from tfm.benchmark.device import cell as one_cell
from tfm.benchmark.device import cells, machine, report
from tfm.benchmark.process import OUT_OF_MEMORY_TEXTS
from tfm.errors import require
from tfm.training.progress_line import print_status


def arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--to', required=True, metavar='DIR', help='folder for the results and the report')
  parser.add_argument(
    '--minutes', type=float, default=40.0, metavar='N', help='no cell starts later (default: 40)'
  )
  parser.add_argument(
    '--only', metavar='GROUP', choices=report.HEADLINES, help=f'one of {", ".join(report.HEADLINES)}'
  )
  parser.add_argument('--smoke', action='store_true', help='every cell, tiny, in this process')


def main(args: argparse.Namespace) -> int:
  require(args.minutes > 0, f'--minutes={args.minutes:g} must be positive')
  folder = pathlib.Path(args.to)
  folder.mkdir(parents=True, exist_ok=True)
  described = machine.describe_device()
  chosen = [
    each
    for each in cells.list_cells(cells.SMOKE if args.smoke else cells.FULL)
    if args.only in (None, each.group) and all(map(importlib.util.find_spec, each.packages))
  ]
  log, start = folder / 'results.jsonl', time.monotonic()
  results = read_results(log, described)
  missing = [each for each in chosen if each.key not in results]
  for i, each in enumerate(missing, 1):
    left = 60 * args.minutes - (time.monotonic() - start)
    if left <= 0:
      print_status(f'{args.minutes:g} minutes have passed: {len(missing) - i + 1} cells are left; run again')
      break
    print_status(f'cell {i} of {len(missing)}, {left / 60:.0f} minutes left: {each.group} {each.key}')
    found = measure_here(each, folder) if args.smoke else measure_apart(each, folder, min(each.seconds, left))
    if found is None:
      print_status(f'{args.minutes:g} minutes have passed during a cell, which is not recorded; run again')
      break
    results[each.key] = found
    with log.open('a', encoding='utf-8') as file:
      entry = dict(key=each.key, found=found, machine=described, clocks=machine.read_clocks())
      file.write(json.dumps(entry) + '\n')
  origin = [f'{described}.', f'`tfm {" ".join(sys.argv[1:])}`']
  if clocks := machine.read_clocks():
    origin.append(', '.join(f'{name} {value}' for name, value in clocks.items()) + ' (after the last cell).')
  if args.smoke:
    origin.append('A smoke test: the sizes are tiny, and the numbers mean nothing.')
  measured = [(each, results[each.key]) for each in chosen if each.key in results]
  report.write_report(folder, measured, origin)
  if importlib.util.find_spec('matplotlib'):
    from tfm.benchmark.device import bars

    bars.draw_bars(folder / 'report.png', measured, described)
  else:
    print_status("there is no picture without matplotlib: pip install 'tfm[plots]'")
  print_status(f'{folder}: report.md, {len(measured)} of {len(chosen)} cells')
  return 0


def measure_apart(cell: cells.Cell, folder: pathlib.Path, seconds: float) -> dict | None:
  """What a process of its own finds; None if the time left ended it, and not its own limit."""
  command = [sys.executable, '-m', one_cell.__name__, cell.function, json.dumps(dict(cell.arguments))]
  paths = os.pathsep.join(map(os.path.abspath, sys.path))  # relative ones would be lost in another folder
  try:
    done = subprocess.run(
      command,
      capture_output=True,
      text=True,
      encoding='utf-8',
      timeout=seconds,
      cwd=folder,
      env=os.environ | dict(PYTHONPATH=paths),
    )
  except subprocess.TimeoutExpired:
    return dict(error=f'took longer than {cell.seconds} s') if seconds >= cell.seconds else None
  if done.returncode:
    if done.returncode == -9 or any(text in done.stderr for text in OUT_OF_MEMORY_TEXTS):
      return dict(error='no memory')
    lines = done.stderr.strip().splitlines()
    return dict(error=lines[-1][:300] if lines else f'ended with status {done.returncode}')
  return json.loads(done.stdout.splitlines()[-1])


def measure_here(cell: cells.Cell, folder: pathlib.Path) -> dict:
  """What this process finds."""
  with contextlib.chdir(folder):
    return one_cell.measure(cell)


def read_results(log: pathlib.Path, described: str) -> dict[str, dict]:
  """Cell → numbers of earlier calls.

  Raises:
    ValueError: if they were measured on another machine or with other versions.
  """
  results = {}
  for line in log.read_text(encoding='utf-8').splitlines() if log.exists() else ():
    entry = json.loads(line)
    require(
      entry['machine'] == described,
      f'--to={log.parent} holds measurements of another machine ({entry["machine"]}), and this one is '
      f'{described}; choose another folder',
    )
    results[entry['key']] = entry['found']
  return results
