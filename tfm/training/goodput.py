"""Where the time of a run goes, over all its restarts: the share that made it better is its goodput."""

import contextlib
import json
import os
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax

from tfm.training.progress import print_status


# What a second may be spent on. Each since a process began to train is one of these; the time between two processes of a
# run, of which nobody knows what it was for, is none.
KINDS = {
  'productive': 'steps that were kept',
  'starting': 'reading data, restoring, and what else comes before the first step',
  'compiling': 'steps, and each of a new shape again',
  'saving': 'as long as training waits for it; the most of a save goes on beside the steps',
  'waiting': 'for data',
  'evaluating': 'compiling that, too',
  'lost': 'after the last checkpoint before a kill: to be done again',
}
FILE = 'goodput.json'
# Checkpoints that last, and those near at hand (tfm/training/local_checkpoints.py); in `goodput.json`, what was spent until each.
TIERS = 'marks', 'near'
MARKS = 8  # saves of a tier that are remembered
COMPILED = '/jax/core/compile/backend_compile_duration'

T = TypeVar('T')


class Goodput:
  """Counts seconds by `KINDS`, and goes on from what earlier processes of the run have counted.

  Args:
    folders: of the runs that train in this process, each of which keeps `goodput.json`; empty: nothing is kept.
    step: the checkpoint that this process goes on from; what was done beyond it is lost.
    begun: when it began, by `time.perf_counter`.

  Attributes:
    seconds: by kind; save_seconds: that training waited for the last save of each tier of checkpoints.
  """

  def __init__(self, folders: Sequence[pathlib.Path] = (), step: int = 0, begun: float | None = None):
    self._folders, self._kinds, self._compiled = folders, ['starting'], False
    self._since = time.perf_counter() if begun is None else begun
    self.seconds, self.save_seconds = dict.fromkeys(KINDS, 0.0), dict.fromkeys(TIERS, 0.0)
    self._marks = {tier: {} for tier in TIERS}
    if folders and (path := folders[0] / FILE).exists():
      try:
        self.seconds, self._marks = until(json.loads(path.read_text()), step)
      except (ValueError, KeyError, TypeError, AttributeError) as error:
        print_status(
          f'{path} cannot be read ({type(error).__name__}: {error}), and where the time of this run went is counted anew'
        )
    self._unsaved = self.seconds['saving']

  @contextlib.contextmanager
  def spent(self, kind: str) -> Iterator[None]:
    """Counts the block as `kind`, but for what in it is counted as another."""
    self._turn()
    self._kinds.append(kind)
    try:
      yield
    finally:
      self._turn()
      self._kinds.pop()

  @contextlib.contextmanager
  def training(self) -> Iterator[None]:
    """The block of all steps."""

    def heard(event, seconds, **about):
      self._compiled |= event == COMPILED

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
      with self.spent('productive'):
        yield
    finally:
      jax.monitoring.unregister_event_duration_listener(heard)

  @contextlib.contextmanager
  def step(self) -> Iterator[None]:
    """The block that has the devices begin a step: next to nothing, unless something is compiled."""
    self._turn()
    before, self._compiled = self.seconds['productive'], False
    yield
    self._turn()
    if self._compiled:
      self.seconds['compiling'] += self.seconds['productive'] - before
      self.seconds['productive'] = before

  def waited(self, items: Iterator[T]) -> Iterator[T]:
    """The items, waited for."""
    while True:
      with self.spent('waiting'):
        try:
          item = next(items)
        except StopIteration:
          return
      yield item

  def saved(self, step: int, tier: str = TIERS[0]) -> None:
    """Remembers what was spent until a checkpoint."""
    self._turn()
    self.save_seconds[tier], self._unsaved = self.seconds['saving'] - self._unsaved, self.seconds['saving']
    marks = self._marks[tier]
    marks[str(step)] = dict(self.seconds)
    for old in sorted(marks, key=int)[:-MARKS]:
      del marks[old]
    self.write()

  def end(self) -> None:
    """Nothing is lost of what was spent since the last save: it is the end."""
    if marks := self._marks[TIERS[0]]:
      self.saved(max(map(int, marks)))

  def write(self) -> None:
    """Keeps what was counted, whole or not at all."""
    self._turn()
    for folder in self._folders:
      part = folder / f'{FILE}.{os.getpid()}'
      part.write_text(json.dumps(dict(seconds=self.seconds) | self._marks))
      part.replace(folder / FILE)

  def shares(self) -> dict[str, float]:
    """The share of each kind in all."""
    self._turn()
    total = sum(self.seconds.values()) or 1.0
    return {kind: seconds / total for kind, seconds in self.seconds.items()}

  def __str__(self):
    shares = ', '.join(f'{kind} {share:.1%}' for kind, share in self.shares().items() if share >= 0.0005)
    return f'goodput: of {sum(self.seconds.values()):,.0f} seconds {shares}'

  def _turn(self) -> None:
    now = time.perf_counter()
    self.seconds[self._kinds[-1]] += now - self._since
    self._since = now


def until(before: Mapping[str, Any], step: int) -> tuple[dict[str, float], dict[str, dict]]:
  """Of what `goodput.json` tells, the seconds until a step, with those after it as lost, and the marks until it."""
  marks = {tier: before.get(tier, {}) for tier in TIERS}
  kept = next((marks[tier][str(step)] for tier in TIERS if str(step) in marks[tier]), {})
  seconds = {kind: kept.get(kind, 0.0) for kind in KINDS}
  seconds['lost'] += sum(before['seconds'].values()) - sum(kept.values())
  return seconds, {tier: {at: mark for at, mark in marks[tier].items() if int(at) <= step} for tier in TIERS}
