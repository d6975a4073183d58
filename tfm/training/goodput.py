"""Where the time of a run goes, over all its restarts: the share of productive steps is its goodput."""

import contextlib
import json
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax

from tfm.errors import parse_json
from tfm.parallel.freed_memory import COMPILED
from tfm.training.atomic_files import write_atomically
from tfm.training.progress_line import print_status


# The kinds of time. Each second since the start of a process has one kind; the time between two processes of
# a run is not counted.
KINDS = {
  'productive': 'steps that later steps build on',
  'starting': 'reading data, restoring and all else before the first step',
  'compiling': 'the first step of each shape',
  'saving': 'while training waits; most of a save runs in the background',
  'waiting': 'for data',
  'evaluating': 'with its compilation',
  'lost': 'after the last checkpoint before a kill: computed again',
}
FILE = 'goodput.json'
# Shared checkpoints and local ones (tfm/training/local_checkpoints.py): keys of `goodput.json`, which has the
# totals at each save.
TIERS = 'marks', 'near'
MARKS = 8  # saves of each tier whose totals are stored

T = TypeVar('T')


class Goodput:
  """Counts seconds by `KINDS`, and continues the counts of earlier processes of the run.

  Args:
    folders: of the runs that train in this process, in which `goodput.json` is written; empty to write
      nothing.
    step: the checkpoint that this process resumes from; time after it counts as lost.
    started: when the process started, by `time.perf_counter`.

  Attributes:
    seconds: by kind; save_seconds: by tier, the seconds that training waited for the last save.
  """

  def __init__(self, folders: Sequence[pathlib.Path] = (), step: int = 0, started: float | None = None):
    self._folders, self._kinds, self._compiled = folders, ['starting'], False
    self._since = time.perf_counter() if started is None else started
    self.seconds, self.save_seconds = dict.fromkeys(KINDS, 0.0), dict.fromkeys(TIERS, 0.0)
    self._marks = {tier: {} for tier in TIERS}
    if folders and (path := folders[0] / FILE).exists():
      try:
        self.seconds, self._marks = totals_until(parse_json(path.read_text(encoding='utf-8')), step)
      except (ValueError, KeyError, TypeError, AttributeError) as error:
        print_status(
          f'{path} cannot be read ({type(error).__name__}: {error}), so the time of this run is counted '
          'from zero'
        )
    self._unsaved = self.seconds['saving']

  @contextlib.contextmanager
  def measure(self, kind: str) -> Iterator[None]:
    """Counts the block as `kind`, except for nested blocks of another kind."""
    self._count()
    self._kinds.append(kind)
    try:
      yield
    finally:
      self._count()
      self._kinds.pop()

  @contextlib.contextmanager
  def measure_training(self) -> Iterator[None]:
    """Counts the block of all steps."""

    def on_event(event, seconds, **details):
      self._compiled |= event == COMPILED

    jax.monitoring.register_event_duration_secs_listener(on_event)
    try:
      with self.measure('productive'):
        yield
    finally:
      jax.monitoring.unregister_event_duration_listener(on_event)

  @contextlib.contextmanager
  def measure_step(self) -> Iterator[None]:
    """Counts the dispatch of a step, as compiling if it compiles."""
    self._count()
    before, self._compiled = self.seconds['productive'], False
    yield
    self._count()
    if self._compiled:
      self.seconds['compiling'] += self.seconds['productive'] - before
      self.seconds['productive'] = before

  def measure_waiting(self, items: Iterator[T]) -> Iterator[T]:
    """Yields the items and counts the time waiting for them."""
    while True:
      with self.measure('waiting'):
        try:
          item = next(items)
        except StopIteration:
          return
      yield item

  def record_save(self, step: int, tier: str = TIERS[0]) -> None:
    """Stores the totals at a checkpoint."""
    self._count()
    self.save_seconds[tier], self._unsaved = self.seconds['saving'] - self._unsaved, self.seconds['saving']
    marks = self._marks[tier]
    marks[str(step)] = dict(self.seconds)
    for old in sorted(marks, key=int)[:-MARKS]:
      del marks[old]
    self.write()

  def record_end(self) -> None:
    """Adds the time since the last save to its totals, at the end of the run."""
    if marks := self._marks[TIERS[0]]:
      self.record_save(max(map(int, marks)))

  def write(self) -> None:
    """Writes the counts atomically."""
    self._count()
    for folder in self._folders:
      write_atomically(folder / FILE, json.dumps(dict(seconds=self.seconds) | self._marks))

  def shares(self) -> dict[str, float]:
    """The share of each kind in all."""
    self._count()
    total = sum(self.seconds.values()) or 1.0
    return {kind: seconds / total for kind, seconds in self.seconds.items()}

  def __str__(self):
    shares = ', '.join(f'{kind} {share:.1%}' for kind, share in self.shares().items() if share >= 0.0005)
    return f'goodput: of {sum(self.seconds.values()):,.0f} seconds {shares}'

  def _count(self) -> None:
    now = time.perf_counter()
    self.seconds[self._kinds[-1]] += now - self._since
    self._since = now


def totals_until(before: Mapping[str, Any], step: int) -> tuple[dict[str, float], dict[str, dict]]:
  """The seconds of `goodput.json` at a step, with those after it as lost, and the stored totals up to it."""
  marks = {tier: before.get(tier, {}) for tier in TIERS}
  totals = next((marks[tier][str(step)] for tier in TIERS if str(step) in marks[tier]), {})
  seconds = {kind: totals.get(kind, 0.0) for kind in KINDS}
  seconds['lost'] += sum(before['seconds'].values()) - sum(totals.values())
  return seconds, {tier: {at: mark for at, mark in marks[tier].items() if int(at) <= step} for tier in TIERS}
