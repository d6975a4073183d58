"""Follows a run by its metrics.jsonl."""

import os
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tfm.runs.lock import is_locked
from tfm.runs.summary import summarize_run
from tfm.training import metrics
from tfm.training.progress_line import Progress, current_display, print_status


PERIOD = 0.5  # seconds between two looks at the file


def watch_run(workdir: pathlib.Path) -> None:
  """Shows a run while a process trains it, and its state when it ends.

  Raises:
    ValueError: if the folder is not that of a run.
  """
  run, display = summarize_run(workdir), current_display()
  if run.state == 'running':
    last = {}
    with display.training([workdir], run.step, run.steps):
      for row, is_new in follow_metrics(workdir):
        last[row['split']] = row
        if is_new:
          display.show_metrics(workdir, row)
        if 'train' in last:
          display.show_progress(read_progress(last, run.steps))
    run = summarize_run(workdir)
  print_status(str(run))


def follow_metrics(workdir: pathlib.Path) -> Iterator[tuple[Mapping[str, Any], bool]]:
  """The rows of a run that is running, and whether each is new: the first ones were there before."""
  path, inode, is_new = workdir / 'metrics.jsonl', None, False
  while True:
    running = is_locked(workdir)  # asked before the file is read, so that the last rows are
    if path.exists():
      with path.open('rb') as file:
        if os.fstat(file.fileno()).st_ino != inode:  # a process that resumes writes the file anew
          inode, offset, lines, is_new = os.fstat(file.fileno()).st_ino, 0, 0, False
        file.seek(offset)
        content = file.read()
      rows = metrics.parse_rows(path, content, lines + 1)
      yield from ((row, is_new) for row in rows)
      offset, lines = offset + content.rfind(b'\n') + 1, lines + len(rows)
    if not running:
      return
    is_new = True
    time.sleep(PERIOD)


def read_progress(last: Mapping[str, Mapping[str, Any]], steps: int) -> Progress:
  """How far a run is, from its last row of each split."""
  train, validation = last['train'], last.get('validation', {})
  step, seconds = train['step'], train.get('step_seconds')
  return Progress(
    step,
    steps,
    train.get('loss'),
    (validation['step'], validation['loss']) if 'loss' in validation else None,
    train.get('tokens_per_second'),
    train.get('mfu'),
    train.get('memory_bytes'),
    None if seconds is None else (steps - step) * seconds,
  )
