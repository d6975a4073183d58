"""The training loop: visible, and the only one."""

import dataclasses
import math
import signal
from collections.abc import Callable, Iterator

import jax

from tfm.data.device import Fetched
from tfm.shapes import PyTree
from tfm.training.metrics import Log
from tfm.training.progress import Line, say
from tfm.training.state import State


class Diverged(ValueError):
  """A metric is no longer a finite number."""


@dataclasses.dataclass(frozen=True)
class Cadence:
  """When things happen, in steps.

  Attributes:
    steps: the last step; log_every, evaluate_every: intervals; profile: how many steps to profile.
  """

  steps: int
  log_every: int
  evaluate_every: int
  profile: int


def fit(
    state: State,
    batches: Iterator[Fetched],
    step: Callable[[State, PyTree], tuple[State, dict[str, jax.Array]]],
    evaluate: Callable[[PyTree], dict[str, float]],
    save: Callable[[State, dict, float | None], None],
    cadence: Cadence,
    log: Log,
    line: Line,
    profile_dir: str,
) -> State:
  """Trains from `state` to the last step, or to a SIGTERM (or Ctrl-C), and saves what it reached.

  Metrics are read one step late, so that the device always has its next step before the host waits.

  Args:
    batches: device batches with the iterator's state after each.
    step: the compiled step; it may consume the state it is given.
    evaluate: parameters → metrics of the validation split.
    save: (state, the iterator's state, validation loss or None) → a checkpoint.

  Raises:
    Diverged: if a metric is NaN or infinite: its name and step; nothing of that step is saved.
  """
  first = int(state.step)
  pending = None
  with _Stop() as stop:
    for i, fetched in zip(range(first + 1, cadence.steps + 1), batches):
      if cadence.profile and i == first + 3:
        jax.profiler.start_trace(profile_dir)
      with jax.transfer_guard('disallow'):
        state, metrics = step(state, fetched.batch)
      if cadence.profile and i == min(first + 2 + cadence.profile, cadence.steps) >= first + 3:
        jax.block_until_ready(state)
        jax.profiler.stop_trace()
        say(f'profile of {i - first - 2} steps: {profile_dir}')

      stopping = stop.asked  # asked once: a signal that comes later is the next step's
      due = i % cadence.evaluate_every == 0 or i == cadence.steps or stopping
      if pending:
        _report(*pending, cadence, log, line)
      pending = i, metrics, fetched
      if due:
        _report(*pending, cadence, log, line)
        pending = None
        paused = line.pause()
        # A run that was asked to stop has little time: it saves and does no more.
        values = {} if stopping else evaluate(state.params)
        if values:
          _check(i, 'validation', values)
          log.write(i, 'validation', values)
          say(f'step {i}  validation: ' + ', '.join(f'{k} {v:.4g}' for k, v in values.items()))
        save(state, fetched.state, values.get('loss'))
        line.resume(paused)
      if stopping:
        say(f'stopped at step {i}, which is saved; the same command goes on from there')
        break
  return state


def _report(i, metrics, fetched, cadence, log, line) -> None:
  """Brings the metrics of step i to the host, and says what they are when it is time."""
  values = {name: float(value) for name, value in jax.device_get(metrics).items()}
  _check(i, 'train', values)
  line.advance(i, values.pop('read'), values['loss'])
  if i % cadence.log_every == 0 or i == cadence.steps:
    values |= dict(tokens_per_second=line.rate(), batch=fetched.hash)
    if line.peak_flops and line.flops_per_token:
      values |= dict(mfu=line.mfu())
    log.write(i, 'train', values)


def _check(i, split, values) -> None:
  for name, value in values.items():
    if not math.isfinite(value):
      raise Diverged(f'{split} {name} is {value} at step {i}; nothing of that step is saved, the last '
                     'checkpoint is good (a lower optimizer.learning_rate or optimizer.clip may help)')


class _Stop:
  """Notes SIGTERM and SIGINT instead of dying of them; a second one does kill."""

  def __enter__(self) -> '_Stop':
    self.asked, self.before = False, {}
    for number in (signal.SIGTERM, signal.SIGINT):
      self.before[number] = signal.signal(number, self.note)
    return self

  def note(self, number, frame) -> None:
    self.asked = True
    signal.signal(number, self.before[number])

  def __exit__(self, *error) -> None:
    for number, handler in self.before.items():
      signal.signal(number, handler)
