"""What is said of training while it goes on: the log of every run, and one live line."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from tfm.data.device import Fetched
from tfm.shapes import Array
from tfm.training.metrics import Log
from tfm.training.progress import Line, say


class Diverged(ValueError):
  """A metric is no longer a finite number."""


class Report:
  """Takes the metrics of one run, or of several that train together, and stops what diverges.

  Attributes:
    live: the numbers of the runs that have not diverged.
    diverged: why the others have, by their numbers.
  """

  def __init__(self, logs: Sequence[Log], line: Line):
    self._logs, self._line = logs, line
    self.live, self.diverged = list(range(len(logs))), {}

  def trained(self, step: int, metrics: Mapping[str, Array], fetched: Fetched, due: bool) -> None:
    """Brings the metrics of a step, each [] or [runs], to the host, and writes them when it is time.

    Raises:
      Diverged: if no run is left.
    """
    values = {name: np.atleast_1d(x) for name, x in jax.device_get(metrics).items()}
    for run in tuple(self.live):
      self._check(step, run, 'train', {name: float(x[run]) for name, x in values.items()})
    read, loss = values.pop('read'), values['loss'][self.live].mean()
    self._line.advance(step, float(read.sum()), float(loss))
    if due:
      hashes = fetched.hashes   # gathered from all processes
      for run in self.live:
        said = {name: float(x[run]) for name, x in values.items()}
        said |= dict(tokens_per_second=self._line.rate(), batch=hashes[run])
        if self._line.peak_flops and self._line.flops_per_token:
          said |= dict(mfu=self._line.mfu())
        self._logs[run].write(step, 'train', said)

  def evaluated(self, step: int, run: int, values: Mapping[str, float]) -> bool:
    """Writes what a run reached on the validation split, if it was evaluated; whether it is still alive.

    Raises:
      Diverged: if no run is left.
    """
    self._check(step, run, 'validation', values)
    if values and run in self.live:
      self._logs[run].write(step, 'validation', dict(values))
      which = f' of run {run}' if len(self._logs) > 1 else ''
      say(f'step {step}  validation{which}: ' + ', '.join(f'{k} {v:.4g}' for k, v in values.items()))
    return run in self.live

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Leaves what is no training out of the rate."""
    since = self._line.pause()
    yield
    self._line.resume(since)

  def _check(self, step: int, run: int, split: str, values: Mapping[str, float]) -> None:
    for name, value in values.items():
      if not math.isfinite(value):
        self.live.remove(run)
        self.diverged[run] = (f'{split} {name} is {value} at step {step}; nothing of that step is saved, the last '
                              'checkpoint is good (a lower optimizer.learning_rate or optimizer.clip may help)')
        if not self.live:
          raise Diverged(self.diverged[run])
        say(f'run {run}: {self.diverged[run]}; the others go on')
        return
