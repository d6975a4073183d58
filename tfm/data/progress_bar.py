"""A progress bar on stderr for slow loops."""

import time
from typing import Iterable, Iterator, TypeVar

from rich import progress
from rich.console import Console


console = Console(stderr=True)  # of all that a command shows while it works
DELAY = 2.0  # seconds before the bar appears
PERIOD = 0.1  # seconds between updates of the bar, which are slow

T = TypeVar('T')


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
  """Yields the items; after `DELAY` seconds shows a bar, which disappears when the items are exhausted."""
  due, bar, task = time.monotonic() + DELAY, None, None
  try:
    for done, item in enumerate(items):
      if (now := time.monotonic()) > due:
        if bar is None:
          columns = (*progress.Progress.get_default_columns(), progress.MofNCompleteColumn())
          bar = progress.Progress(*columns, console=console, transient=True, redirect_stdout=False)
          task = bar.add_task(description, total=total)
          bar.start()
        bar.update(task, completed=done)
        due = now + PERIOD
      yield item
  finally:
    if bar is not None:
      bar.stop()
