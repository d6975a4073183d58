"""Measures one accelerator, the most valuable numbers first: each in a process of its own with a time limit.

Calibration (the rates that it reaches in matrix products and copies); the training step of a LLaMA of 1B by
kernel, rematerialization and compiler preset, and by PyTorch where it is installed; attention kernels by
variant and length, beside FlexAttention; mixers; decoding; a profile. Every number is appended to
DIR/results.jsonl at once with its date, the clocks and the power while it ran; the same command run again
measures only what is missing, so several short calls add up. A cell for which the time left was too short is
tried again after all others; one that failed, when its line is deleted. DIR/report.md has tables,
DIR/report.png bars; --report writes them anew, anywhere, and measures nothing.

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
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

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
  parser.add_argument('--report', action='store_true', help='write the report of what DIR has, and exit')


def main(args: argparse.Namespace) -> int:
  require(args.minutes > 0, f'--minutes={args.minutes:g} must be positive')
  folder = pathlib.Path(args.to)
  log = folder / 'results.jsonl'
  require(log.is_file() or not args.report, f'--report: {log} does not exist; measure first')
  folder.mkdir(parents=True, exist_ok=True)
  chosen = [
    each
    for each in cells.list_cells(cells.SMOKE if args.smoke else cells.FULL)
    if args.only in (None, each.group)
  ]
  if not args.report:
    chosen = [each for each in chosen if all(map(importlib.util.find_spec, each.packages))]
    measure_missing(chosen, log, args)
  write(folder, chosen, read_entries(log), args.smoke)
  return 0


def measure_missing(chosen: Sequence[cells.Cell], log: pathlib.Path, args: argparse.Namespace) -> None:
  """Measures what the log lacks, those for which an earlier call was too short last, until the time is over.

  Raises:
    ValueError: if the log is of another machine or of other versions.
  """
  start, described, code = time.monotonic(), machine.describe_device(), machine.digest_code()
  entries = read_entries(log)
  for entry in entries:
    require(
      entry['machine'] == described,
      f'--to={log.parent} holds measurements of another machine ({entry["machine"]}), and this one is '
      f'{described}; choose another folder',
    )
  results = {entry['key']: entry['found'] for entry in entries}
  missing = [each for each in chosen if 'unfinished' in results.get(each.key, dict(unfinished=0))]
  missing.sort(key=lambda each: each.key in results)
  for i, each in enumerate(missing, 1):
    left = 60 * args.minutes - (time.monotonic() - start)
    if left <= 0:
      print_status(f'{args.minutes:g} minutes have passed: {len(missing) - i + 1} cells are left; run again')
      break
    print_status(f'cell {i} of {len(missing)}, {left / 60:.0f} minutes left: {each.group} {each.key}')
    begun = time.monotonic()
    with machine.watch_clocks() as clocks:
      found = (
        measure_here(each, log.parent)
        if args.smoke
        else measure_apart(each, log.parent, min(each.seconds, left))
      )
    entry = dict(key=each.key, found=found, machine=described, code=code, date=f'{date.today()}')
    entry |= dict(seconds=round(time.monotonic() - begun, 1), clocks=clocks, smoke=args.smoke)
    with log.open('a', encoding='utf-8') as file:
      file.write(json.dumps(entry) + '\n')


def write(
  folder: pathlib.Path, chosen: Sequence[cells.Cell], entries: Sequence[Mapping[str, Any]], smoke: bool
) -> None:
  """Writes the report of the entries, in the order of the cells."""
  last = {entry['key']: entry for entry in entries if 'unfinished' not in entry['found']}
  shown = [last[each.key] for each in chosen if each.key in last]
  dates = sorted({entry['date'] for entry in shown if 'date' in entry})
  origin = [f'{each}.' for each in dict.fromkeys(entry['machine'] for entry in shown)]
  if dates:
    origin.append(f'{dates[0]}.' if dates[0] == dates[-1] else f'{dates[0]} to {dates[-1]}.')
  if (states := len({entry.get('code') for entry in shown})) > 1:
    origin.append(f'The cells were measured with {states} states of the code: code in results.jsonl.')
  if others := len(last.keys() - {each.key for each in chosen}):
    origin.append(f'results.jsonl has {others} further cells, which are not shown.')
  if smoke:
    origin.append('A smoke test: the sizes are tiny, and the numbers mean nothing.')
  measured = [(each, last[each.key]['found']) for each in chosen if each.key in last]
  report.write_report(folder, measured, origin)
  if importlib.util.find_spec('matplotlib'):
    from tfm.benchmark.device import bars

    bars.draw_bars(folder / 'report.png', measured, shown[0]['machine'] if shown else '')
  else:
    print_status("there is no picture without matplotlib: pip install -e '.[plots]'; then --report draws it")
  print_status(f'{folder}: report.md, {len(measured)} of {len(chosen)} cells')


def measure_apart(cell: cells.Cell, folder: pathlib.Path, seconds: float) -> dict[str, Any]:
  """What a process of its own finds; `unfinished` if the time left ended it, and not its own limit."""
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
    if seconds >= cell.seconds:
      return dict(error=f'took longer than {cell.seconds} s')
    return dict(unfinished=round(seconds))
  if done.returncode:
    if done.returncode == -9 or any(text in done.stderr for text in OUT_OF_MEMORY_TEXTS):
      return dict(error='no memory')
    lines = done.stderr.strip().splitlines()
    return dict(error=lines[-1][:300] if lines else f'ended with status {done.returncode}')
  try:
    return json.loads(done.stdout.splitlines()[-1])
  except (IndexError, ValueError):
    return dict(error=f'its last line is not its numbers: {done.stdout[-200:]!r}')


def measure_here(cell: cells.Cell, folder: pathlib.Path) -> dict[str, Any]:
  """What this process finds."""
  with contextlib.chdir(folder):
    return one_cell.measure(cell)


def read_entries(log: pathlib.Path) -> list[dict[str, Any]]:
  """The lines of earlier calls. A last one that was cut off when a call was killed is taken from the file.

  Raises:
    ValueError: for another line that is not JSON.
  """
  text = log.read_text(encoding='utf-8') if log.exists() else ''
  lines, entries = text.splitlines(), []
  for number, line in enumerate(lines, 1):
    try:
      entries.append(json.loads(line))
    except ValueError as error:
      if number < len(lines) or text.endswith('\n'):
        raise ValueError(f'{log}: line {number} is not JSON; delete it') from error
      print_status(f'{log}: its last line is cut off, and its cell is measured again')
  if not text.endswith('\n') and text:
    log.write_text('\n'.join([*lines[: len(entries)], '']), encoding='utf-8')
  return entries
