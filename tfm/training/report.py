"""What is said of training while it goes on: the log of every run, and one live line."""

import contextlib
import logging
import math
import struct
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from tfm.data.device import DeviceBatch
from tfm.parallel import processes
from tfm.shapes import Array
from tfm.training.goodput import Goodput
from tfm.training.metrics import MetricsLog
from tfm.training.progress import Line, print_status


_log = logging.getLogger(__name__)


class Diverged(ValueError):
  """A metric is no longer a finite number."""


class Report:
  """Takes the metrics of one run, or of several that train together, and stops what diverges.

  Args:
    first: the step before the first.

  Attributes:
    live: the numbers of the runs that have not diverged.
    diverged: why the others have, by their numbers.
    goodput: where the time goes.
    step_seconds, save_seconds: of a step since the last line of the log, and of the last save of each tier of checkpoints, in
      the slowest process.
  """

  def __init__(self, logs: Sequence[MetricsLog], line: Line, goodput: Goodput, first: int = 0):
    self._logs, self.line, self.goodput = logs, line, goodput
    self._told, self._before = first, dict(goodput.seconds)
    self.step_seconds, self.save_seconds = 0.0, dict(goodput.save_seconds)
    self.live, self.diverged = list(range(len(logs))), {}

  def trained(self, step: int, metrics: Mapping[str, Array], fetched: DeviceBatch, due: bool) -> None:
    """Brings the metrics of a step, each [] or [runs], to the host, and writes them when it is time.

    Raises:
      Diverged: if no run is left.
    """
    values = {name: np.atleast_1d(x) for name, x in jax.device_get(metrics).items()}
    for run in tuple(self.live):
      self._check(step, run, 'train', {name: float(x[run]) for name, x in values.items()})
    for run in self.live if 'spike' in values else ():
      if values['spike'][run]:
        due, which = True, f' of run {run}' if len(self._logs) > 1 else ''
        _log.info(
          f'step {step}{which} is skipped: the norm of its gradient, {values["gradient_norm"][run]:.4g}, is more than '
          f'config.training.skip_spikes times its running mean; {int(values["spikes"][run])} so far'
        )
    read, loss = values.pop('read'), values['loss'][self.live].mean()
    self.line.advance(step, float(read.sum()), float(loss))
    if due:
      pace, hashes = self._pace(step), fetched.hashes  # gathered from all processes
      for run in self.live:
        said = {name: float(x[run]) for name, x in values.items()}
        said |= pace | dict(tokens_per_second=self.line.rate(), batch=hashes[run])
        if self.line.peak_flops and self.line.flops_per_token:
          said |= dict(mfu=self.line.mfu())
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
      print_status(f'step {step}  validation{which}: ' + ', '.join(f'{k} {v:.4g}' for k, v in values.items()))
    return run in self.live

  def _pace(self, step: int) -> dict[str, float]:
    """Seconds of a step since the last line of the log, those of them that data were waited for, and the goodput so far.

    A step takes all processes as long as the slowest of them; who waits least for data waits for the others in the step.
    """
    self.goodput.write()
    shares, now = self.goodput.shares(), dict(self.goodput.seconds)
    steps = max(step - self._told, 1)
    spent = {kind: now[kind] - self._before[kind] for kind in now}
    mine = spent['productive'] / steps, spent['waiting'] / steps, *self.goodput.save_seconds.values()
    self._told, self._before = step, now
    form = f'>{len(mine)}d'
    every = [struct.unpack(form, record) for record in processes.gather_bytes(struct.pack(form, *mine))]
    step_seconds, data_seconds, *saving = zip(*every)
    self.step_seconds, self.save_seconds = max(step_seconds), dict(zip(self.save_seconds, map(max, saving)))
    told = dict(goodput=shares['productive'], step_seconds=max(step_seconds), data_seconds=max(data_seconds))
    if len(every) > 1:
      told |= dict(
        step_seconds_fastest=min(step_seconds),
        data_seconds_fastest=min(data_seconds),
        data_slowest_process=data_seconds.index(max(data_seconds)),
      )
    return told

  def save_takes(self, tier: str) -> float:
    """Seconds for which training waits for a save: of a tier that has had none, those of the other."""
    return self.save_seconds[tier] or max(self.save_seconds.values())

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Leaves what is no training out of the rate."""
    since = self.line.pause()
    yield
    self.line.resume(since)

  def _check(self, step: int, run: int, split: str, values: Mapping[str, float]) -> None:
    for name, value in values.items():
      if not math.isfinite(value):
        self.live.remove(run)
        self.diverged[run] = (
          f'{split} {name} is {value} at step {step}; nothing of that step is saved, the last '
          'checkpoint is good (a lower optimizer.learning_rate or optimizer.clip may help)'
        )
        if not self.live:
          raise Diverged(self.diverged[run])
        print_status(f'run {run}: {self.diverged[run]}; the others go on')
        return
