"""Reporting during training: the log of every run, and one live line."""

import contextlib
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from tfm.data.device_prefetch import DeviceBatch
from tfm.parallel import processes
from tfm.shapes import Array
from tfm.training.goodput import Goodput
from tfm.training.metrics import MetricsLog
from tfm.training.progress_line import Line, print_status


_log = logging.getLogger(__name__)


class Diverged(ValueError):
  """A metric is NaN or infinite."""


class Report:
  """Records the metrics of one run or of an ensemble, and stops runs that diverge.

  Args:
    first: the step to start after.

  Attributes:
    live: the indices of the runs that have not diverged.
    diverged: index → message of the others.
    line: the live line.
    goodput: where the time goes.
    step_seconds, save_seconds: of a step since the last log line, and of the last save of each tier, in the
      slowest process.
  """

  def __init__(self, logs: Sequence[MetricsLog], line: Line, goodput: Goodput, first: int = 0):
    self._logs, self.line, self.goodput = logs, line, goodput
    self._last_logged, self._before = first, dict(goodput.seconds)
    self.step_seconds, self.save_seconds = 0.0, dict(goodput.save_seconds)
    self.live, self.diverged = list(range(len(logs))), {}

  def record_step(self, step: int, metrics: Mapping[str, Array], fetched: DeviceBatch, due: bool) -> None:
    """Copies the metrics of a step, each [] or [runs], to the host, and logs them if `due`.

    Raises:
      Diverged: if no run is left.
    """
    values = {name: np.atleast_1d(x) for name, x in jax.device_get(metrics).items()}
    for run in tuple(self.live):
      self._check(step, run, 'train', {name: float(x[run]) for name, x in values.items()})
    for run in self.live if 'spike' in values else ():
      if values['spike'][run]:
        due, suffix = True, f' of run {run}' if len(self._logs) > 1 else ''
        _log.info(
          f'step {step}{suffix} is skipped: the norm of its gradient, {values["gradient_norm"][run]:.4g}, '
          'is more than '
          f'config.training.skip_spikes times its running mean; {int(values["spikes"][run])} so far'
        )
    read, loss = values.pop('read'), values['loss'][self.live].mean()
    self.line.advance(step, float(read.sum()), float(loss))
    if due:
      pace, hashes = self._pace(step), fetched.hashes  # gathered from all processes
      for run in self.live:
        row = {name: float(x[run]) for name, x in values.items()}
        row |= pace | dict(tokens_per_second=self.line.rate(), batch=hashes[run])
        if self.line.peak_flops and self.line.flops_per_token:
          row |= dict(mfu=self.line.mfu())
        self._logs[run].write(step, 'train', row)

  def record_evaluation(self, step: int, run: int, values: Mapping[str, float]) -> bool:
    """Logs the validation metrics of a run, if there are any; returns whether the run is live.

    Raises:
      Diverged: if no run is left.
    """
    self._check(step, run, 'validation', values)
    if values and run in self.live:
      self._logs[run].write(step, 'validation', dict(values))
      suffix = f' of run {run}' if len(self._logs) > 1 else ''
      print_status(
        f'step {step}  validation{suffix}: ' + ', '.join(f'{k} {v:.4g}' for k, v in values.items())
      )
    return run in self.live

  def _pace(self, step: int) -> dict[str, float]:
    """Seconds of a step since the last log line, the seconds waited for data, and the goodput so far.

    A step takes as long as its slowest process; a process that waits less for data waits for the others in
    the step.
    """
    self.goodput.write()
    shares, now = self.goodput.shares(), dict(self.goodput.seconds)
    steps = max(step - self._last_logged, 1)
    spent = {kind: now[kind] - self._before[kind] for kind in now}
    own = spent['productive'] / steps, spent['waiting'] / steps, *self.goodput.save_seconds.values()
    self._last_logged, self._before = step, now
    every = [json.loads(record) for record in processes.gather_bytes(json.dumps(own).encode())]
    step_seconds, data_seconds, *saving = zip(*every)
    self.step_seconds, self.save_seconds = max(step_seconds), dict(zip(self.save_seconds, map(max, saving)))
    values = dict(
      goodput=shares['productive'], step_seconds=max(step_seconds), data_seconds=max(data_seconds)
    )
    if len(every) > 1:
      values |= dict(
        step_seconds_fastest=min(step_seconds),
        data_seconds_fastest=min(data_seconds),
        data_slowest_process=data_seconds.index(max(data_seconds)),
      )
    return values

  def save_duration(self, tier: str) -> float:
    """Seconds that training waits for a save of a tier; before its first save, those of the other tier."""
    return self.save_seconds[tier] or max(self.save_seconds.values())

  @contextlib.contextmanager
  def exclude_from_rate(self) -> Iterator[None]:
    """Excludes the block from the rate."""
    since = self.line.pause()
    yield
    self.line.resume(since)

  def _check(self, step: int, run: int, split: str, values: Mapping[str, float]) -> None:
    for name, value in values.items():
      if not math.isfinite(value):
        self.live.remove(run)
        self.diverged[run] = (
          f'{split} {name} is {value} at step {step}; that step is not saved, and the last '
          'checkpoint is valid (a lower optimizer.learning_rate or optimizer.clip may help)'
        )
        if not self.live:
          raise Diverged(self.diverged[run])
        print_status(f'run {run}: {self.diverged[run]}; the other runs continue')
        return
