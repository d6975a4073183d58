"""Reporting during training: the log of every run, and what the command shows."""

import contextlib
import dataclasses
import json
import logging
import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from tfm.data.device_prefetch import DeviceBatch
from tfm.models import memory
from tfm.parallel import processes
from tfm.shapes import Array
from tfm.training.goodput import Goodput
from tfm.training.metrics import MetricsLog
from tfm.training.progress_line import Progress, current_display, print_status
from tfm.training.throughput import Throughput


_log = logging.getLogger(__name__)


class Diverged(ValueError):
  """A metric is NaN or infinite."""


class Report:
  """Records the metrics of one run or of an ensemble, and stops runs that diverge.

  Args:
    logs: of the runs that train together.
    first, steps: the step to start after, and the last one.
    validations: of each run, the metrics of its validations up to `first`.

  Attributes:
    step: the last one whose metrics are recorded.
    live: the indices of the runs that train on; finished: of those that have ended before the last step.
    diverged: index → message of the others.
    validations: of each run, the metrics of all its validations.
    goodput: where the time goes.
    step_seconds, save_seconds: of a step since the last log line, and of the last save of each tier, in the
      slowest process.
  """

  def __init__(
    self,
    logs: Sequence[MetricsLog],
    throughput: Throughput,
    goodput: Goodput,
    first: int,
    steps: int,
    validations: Sequence[Sequence[Mapping[str, float]]],
  ):
    self._logs, self._throughput, self.goodput = logs, throughput, goodput
    self.step, self._first, self._steps = first, first, steps
    self._last_logged, self._before = first, dict(goodput.seconds)
    self.step_seconds, self.save_seconds = 0.0, dict(goodput.save_seconds)
    self.live, self.finished, self.diverged = list(range(len(logs))), [], {}
    self.validations = [list(rows) for rows in validations]
    self._validation = (0, {})  # the step and, by run, the losses of the last validation
    self._progress = Progress(first, steps)

  def training(self) -> contextlib.AbstractContextManager[None]:
    """A block in which the runs train, and the command shows it."""
    return current_display().training([log.workdir for log in self._logs], self._first, self._steps)

  def record_step(self, step: int, metrics: Mapping[str, Array], fetched: DeviceBatch, due: bool) -> None:
    """Copies the metrics of a step, each [] or [runs], to the host, and logs them if `due`.

    Raises:
      Diverged: if no run is left.
    """
    values = {name: np.atleast_1d(x) for name, x in jax.device_get(metrics).items()}
    for run in tuple(self.live):
      self._check(step, run, 'train', {name: float(x[run]) for name, x in values.items()})
    if not self.live:
      return
    for run in self.live if 'spike' in values else ():
      if values['spike'][run]:
        due, suffix = True, f' of run {run}' if len(self._logs) > 1 else ''
        _log.info(
          f'step {step}{suffix} is skipped: the norm of its gradient, {values["gradient_norm"][run]:.4g}, '
          'is more than '
          f'config.training.skip_spikes times its running mean; {int(values["spikes"][run])} so far'
        )
    self.step = step
    self._throughput.record_step(float(values.pop('read').sum()))
    self._progress = progress = self._measure_progress(step, float(values['loss'][self.live].mean()))
    current_display().show_progress(progress)
    if due:
      pace, hashes = self._pace(step), fetched.hashes  # gathered from all processes
      for run in self.live:
        row = {name: float(x[run]) for name, x in values.items()}
        row |= pace | dict(tokens_per_second=progress.tokens_per_second, memory_bytes=progress.memory)
        row |= dict(batch=hashes[run]) | ({} if progress.mfu is None else dict(mfu=progress.mfu))
        self._write(step, run, 'train', row)

  def record_evaluation(self, step: int, run: int, values: Mapping[str, float]) -> bool:
    """Logs the validation metrics of a run, if there are any; returns whether the run is live.

    Raises:
      Diverged: if no run is left.
    """
    self._check(step, run, 'validation', values)
    if values and run in self.live:
      self._write(step, run, 'validation', values)
      self.validations[run].append(values)
      before = self._validation[1] if self._validation[0] == step else {}
      self._validation = step, before | {run: values['loss']}
      self._progress = dataclasses.replace(self._progress, validation=self._mean_validation())
      current_display().show_progress(self._progress)
    return run in self.live

  def finish(self, run: int) -> None:
    """Records nothing more of a run, which its validations have ended."""
    self.live.remove(run)
    self.finished.append(run)

  def _write(self, step: int, run: int, split: str, values: Mapping[str, float | str]) -> None:
    """Adds a row to the log of a run, and shows it."""
    current_display().show_metrics(self._logs[run].workdir, self._logs[run].write(step, split, dict(values)))

  def _mean_validation(self) -> tuple[int, float] | None:
    step, losses = self._validation
    return (step, sum(losses.values()) / len(losses)) if losses else None

  def _measure_progress(self, step: int, loss: float) -> Progress:
    return Progress(
      step,
      self._steps,
      loss,
      self._mean_validation(),
      self._throughput.tokens_per_second(),
      self._throughput.mfu(),
      memory.peak_usage(),
      self._throughput.seconds_left(self._steps - step),
    )

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

  def exclude_from_rate(self) -> contextlib.AbstractContextManager[None]:
    """A block that does not count as training, such as an evaluation."""
    return self._throughput.exclude()

  def _check(self, step: int, run: int, split: str, values: Mapping[str, float]) -> None:
    for name, value in values.items():
      if not math.isfinite(value):
        self.live.remove(run)
        self.diverged[run] = (
          f'{split} {name} is {value} at step {step}; that step is not saved, and the last '
          'checkpoint is valid (a lower optimizer.learning_rate or optimizer.clip may help)'
        )
        self._write(step, run, split, dict(diverged=self.diverged[run]))
        if not self.live and not self.finished:
          raise Diverged(self.diverged[run])
        print_status(f'{self._logs[run].workdir}: {self.diverged[run]}; the other runs continue')
        return
