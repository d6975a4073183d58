"""What a command shows while it runs: a live bar on a terminal, plain lines elsewhere, or JSON lines."""

import contextlib
import dataclasses
import datetime
import json
import logging
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from tfm.data.progress_bar import console


# Seconds between two plain lines.
PERIOD = 15.0


@dataclasses.dataclass(frozen=True)
class Progress:
  """How far a training is; None: not known yet.

  Attributes:
    step, steps: the last step whose metrics are known, and the last of the training.
    loss: of the step, the mean of all runs that train together.
    validation: the step and the loss of the last validation.
    tokens_per_second, mfu: see `Throughput`.
    memory: bytes, the peak so far.
    seconds_left: until the last step.
  """

  step: int
  steps: int
  loss: float | None = None
  validation: tuple[int, float] | None = None
  tokens_per_second: float | None = None
  mfu: float | None = None
  memory: float | None = None
  seconds_left: float | None = None

  def __str__(self):
    parts = {
      'loss {:.3f}': self.loss,
      'validation {0[1]:.3f} (step {0[0]})': self.validation,
      '{:.1f}k tokens/s': self.tokens_per_second and self.tokens_per_second / 1000,
      'MFU {:.1%}': self.mfu,
      '{:.1f} GiB': self.memory and self.memory / 2**30,
    }
    return '  '.join(form.format(value) for form, value in parts.items() if value is not None)


class Lines:
  """Plain lines on stderr: messages, validations, and the progress every `PERIOD` seconds."""

  def __init__(self):
    self._runs, self._printed = (), 0.0

  @contextlib.contextmanager
  def training(self, runs: Sequence[pathlib.Path], first: int, steps: int) -> Iterator[None]:
    """A block in which runs train together, from the step after `first` to the step `steps`."""
    self._runs, self._printed = runs, time.perf_counter()
    yield

  def show_message(self, text: str) -> None:
    """Shows a message, without wrapping."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)

  def show_metrics(self, run: pathlib.Path, row: Mapping[str, Any]) -> None:
    """Shows a row of a run's metrics.jsonl."""
    if row['split'] != 'train':
      suffix = f' of {run.name}' if len(self._runs) > 1 else ''
      values = ', '.join(f'{name} {x:.4g}' for name, x in row.items() if isinstance(x, float))
      self.show_message(f'step {row["step"]}  {row["split"]}{suffix}: {values}')

  def show_progress(self, progress: Progress) -> None:
    """Shows how far the training is."""
    now = time.perf_counter()
    if now - self._printed > PERIOD and progress.seconds_left is not None:
      self._printed = now
      left = format_seconds(progress.seconds_left)
      self.show_message(f'step {progress.step} of {progress.steps}  {progress}  {left} left')

  def show_end(self, run: pathlib.Path, step: int, state: str, files: Sequence[str]) -> None:
    """Shows how a run ended (finished, stopped, diverged), and the files that it wrote."""
    self.show_message(f'{run}: {", ".join(files)}')


class Bar(Lines):
  """A live bar with what is known of the training below it; messages and validations appear above."""

  @contextlib.contextmanager
  def training(self, runs, first, steps):
    self._bar = _TwoLines(
      TextColumn('step {task.completed}/{task.total}'),
      BarColumn(bar_width=None),
      TaskProgressColumn(),
      TextColumn('{task.fields[left]}'),
      console=console,
      refresh_per_second=4,
      expand=True,
    )
    self._task = self._bar.add_task('', total=steps, completed=first, left='')
    with super().training(runs, first, steps), self._bar:
      yield

  def show_progress(self, progress):
    left = '' if progress.seconds_left is None else f'{format_seconds(progress.seconds_left)} left'
    self._bar.status = str(progress)
    self._bar.update(self._task, completed=progress.step, left=left)


class _TwoLines(RichProgress):
  """A bar, and below it a line of text that is cut where the terminal ends."""

  status = 'compiling …'

  def get_renderables(self):
    yield from super().get_renderables()
    yield Text(self.status, no_wrap=True, overflow='ellipsis')


class JsonLines(Lines):
  """One object a line on stdout: {"event": "message", "text": …}, {"event": "metrics", "run": …, "step": …,
  "split": …, values by name} and {"event": "end", "run": …, "step": …, "state": …}."""

  def show_message(self, text):
    self._print('message', text=text)

  def show_metrics(self, run, row):
    self._print('metrics', run=str(run), **row)

  def show_progress(self, progress):
    pass  # the metrics have it

  def show_end(self, run, step, state, files):
    self._print('end', run=str(run), step=step, state=state)

  def _print(self, event, **fields):
    print(json.dumps(dict(event=event, **fields), ensure_ascii=False), flush=True)


_selected: Lines | None = None


def current_display() -> Lines:
  """Where a command shows what it does: on stderr, unless `select_display` says otherwise."""
  global _selected
  if _selected is None:
    _selected = Bar() if console.is_terminal else Lines()
  return _selected


@contextlib.contextmanager
def select_display(name: str | None) -> Iterator[None]:
  """A block in which 'json' shows JSON lines, 'quiet' nothing, and None a bar or lines, as stderr allows."""
  global _selected
  _selected, console.quiet = JsonLines() if name == 'json' else None, name is not None
  try:
    yield
  finally:
    _selected, console.quiet = None, False


def print_status(text: str) -> None:
  """Shows a message: on stderr, above the bar if there is one."""
  current_display().show_message(text)


class OnceFilter(logging.Filter):
  """Of log records with equal attributes `once`, a handler with this filter shows the first."""

  def __init__(self):
    super().__init__()
    self._seen = set()

  def filter(self, record):
    key = getattr(record, 'once', None)
    is_new = key is None or key not in self._seen
    self._seen.add(key)
    return is_new


def format_seconds(seconds: float) -> str:
  """Such as 0:01:30."""
  return str(datetime.timedelta(seconds=round(seconds)))
