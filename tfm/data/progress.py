"""A progress bar on stderr for what takes more than a moment."""

import time
from typing import Iterable, Iterator, TypeVar

from rich import console, progress


PATIENCE = 2.0  # seconds without a bar
PERIOD = 0.1  # seconds between its updates, which are slow

T = TypeVar('T')


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
  """Yields the items; after `PATIENCE` seconds shows a bar, which goes when they are exhausted."""
  due, bar, task = time.monotonic() + PATIENCE, None, None
  try:
    for done, item in enumerate(items):
      if (now := time.monotonic()) > due:
        if bar is None:
          columns = (*progress.Progress.get_default_columns(), progress.MofNCompleteColumn())
          bar = progress.Progress(
            *columns, console=console.Console(stderr=True), transient=True, redirect_stdout=False
          )
          task = bar.add_task(description, total=total)
          bar.start()
        bar.update(task, completed=done)
        due = now + PERIOD
      yield item
  finally:
    if bar is not None:
      bar.stop()
