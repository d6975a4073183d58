"""The training loop: visible, and the only one."""

import contextlib
import dataclasses
import itertools
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax

from tfm.data.device import DeviceBatch
from tfm.parallel import processes
from tfm.shapes import PyTree
from tfm.training.interval import Interval
from tfm.training.progress import print_status
from tfm.training.report import Report
from tfm.training.state import State


@dataclasses.dataclass(frozen=True)
class Cadence:
  """When things happen, in steps.

  Attributes:
    steps: the last step; log_every, evaluate_every: intervals; profile: how many steps to profile.
    save: when to, for each tier of checkpoints; besides the end, at which the first does.
  """

  steps: int
  log_every: int
  evaluate_every: int
  profile: int
  save: Mapping[str, Interval]


def fit(
  state: State,
  batches: Iterator[DeviceBatch],
  step: Callable[[State, PyTree], tuple[State, dict[str, jax.Array]]],
  evaluate: Callable[[PyTree], dict[str, float]],
  save: Mapping[str, Callable[[int, State, dict, float | None], None]],
  cadence: Cadence,
  report: Report,
  profile_dir: str,
  split: Callable[[State], Sequence[State]] = lambda state: (state,),
) -> State:
  """Trains from `state` to the last step, or to a SIGTERM (or Ctrl-C), and saves what it reached.

  Metrics are read one step late, so that the device always has its next step before the host waits.

  Args:
    batches: device batches with the iterator's state after each.
    step: the compiled step; it may consume the state it is given.
    evaluate: parameters → metrics of the validation split.
    save: for each tier of checkpoints, the most lasting first, (run, its state, the iterator's state, validation loss or None) →
      a checkpoint.
    report: takes the metrics.
    split: the state of every run that `state` holds; one, unless several train together.

  Raises:
    Diverged: if a metric of the last run that is left is NaN or infinite: its name and step; nothing of that
      step is saved.
  """
  first = int(split(state)[0].step)
  saved, pending, goodput = dict.fromkeys(save, first), None, report.goodput
  with stopping_for() as stop, goodput.training():
    for i, fetched in zip(range(first + 1, cadence.steps + 1), goodput.waited(batches)):
      if cadence.profile and i == first + 3:
        jax.profiler.start_trace(profile_dir)
      with jax.transfer_guard('disallow'), goodput.step():
        state, metrics = step(state, fetched.batch)
      if cadence.profile and i == min(first + 2 + cadence.profile, cadence.steps) >= first + 3:
        jax.block_until_ready(state)
        jax.profiler.stop_trace()
        print_status(f'profile of {i - first - 2} steps: {profile_dir}')

      stopping = stop(i)  # asked once: a signal that comes later is the next step's
      ends = stopping or i == cadence.steps
      evaluated = i % cadence.evaluate_every == 0 or i == cadence.steps
      if pending:
        _tell(report, cadence, *pending)
      pending = i, metrics, fetched
      due = (
        next(iter(save))
        if ends
        else next(
          (
            tier
            for tier in save
            if cadence.save[tier](i, i - saved[tier], evaluated, report.save_takes(tier), report.step_seconds)
          ),
          None,
        )
      )
      if due or evaluated:
        _tell(report, cadence, *pending)
        pending = None
        with report.paused():
          for run, one in enumerate(split(state)):
            if run in report.live:
              # A run that was asked to stop has little time: it saves and does no more.
              with goodput.spent('evaluating'):
                values = evaluate(one.params) if evaluated and not stopping else {}
              if report.evaluated(i, run, values) and due:
                with goodput.spent('saving'):
                  save[due](run, one, fetched.state, values.get('loss'))
        if due:
          # What was saved where it lasts need not be saved near at hand.
          saved |= {tier: i for tier in itertools.dropwhile(lambda tier: tier != due, save)}
          goodput.saved(i, due)
      if stopping:
        print_status(f'stopped at step {i}, which is saved; the same command goes on from there')
        break
  return state


def _tell(report, cadence, i, metrics, fetched) -> None:
  report.trained(i, metrics, fetched, i % cadence.log_every == 0 or i == cadence.steps)


@contextlib.contextmanager
def stopping_for() -> Iterator[Callable[[int], bool]]:
  """Step → whether to stop after it, because of a SIGTERM or Ctrl-C; all processes say the same of a step."""
  if jax.process_count() > 1:
    with processes.interrupt_requests_preemption():
      yield processes.preemption_requested
  else:
    with _Stop() as stop:
      yield lambda step: stop.asked


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
