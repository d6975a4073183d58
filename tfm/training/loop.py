"""The training loop: visible, and the only one."""

import contextlib
import dataclasses
import itertools
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax

from tfm.data.device_prefetch import DeviceBatch
from tfm.parallel import processes
from tfm.shapes import PyTree
from tfm.training.profiler import Profiler
from tfm.training.progress_line import print_status
from tfm.training.reporters import Report
from tfm.training.save_interval import Interval
from tfm.training.state import State
from tfm.training.stop_rule import StopRule


@dataclasses.dataclass(frozen=True)
class Cadence:
  """When things happen, in steps.

  Attributes:
    steps: the last step; log_every, evaluate_every: intervals.
    save: for each tier of checkpoints, when to save; the first tier also saves at the end.
    stop: by which validations a run ends before the last step.
  """

  steps: int
  log_every: int
  evaluate_every: int
  save: Mapping[str, Interval]
  stop: StopRule


@dataclasses.dataclass(frozen=True)
class Functions:
  """What the loop calls.

  Attributes:
    step: the compiled step; it may donate its state.
    evaluate: the state of a run → metrics of the validation split.
    save: for each tier of checkpoints, the most durable first, a function (run, its state, the iterator's
      state, validation loss or None) that saves a checkpoint.
    split: state → the state of each run; one, unless it is an ensemble.
  """

  step: Callable[[State, PyTree], tuple[State, dict[str, jax.Array]]]
  evaluate: Callable[[State], dict[str, float]]
  save: Mapping[str, Callable[[int, State, dict, float | None], None]]
  split: Callable[[State], Sequence[State]] = lambda state: (state,)


def fit(
  state: State,
  batches: Iterator[DeviceBatch],
  functions: Functions,
  cadence: Cadence,
  report: Report,
  profiler: Profiler,
) -> State:
  """Trains from `state` to the last step, or until a SIGTERM or Ctrl-C, and saves the last state.

  A run of an ensemble that its validations end earlier is saved then, and nothing more of it is recorded.

  Metrics are read one step late, so that the device always has its next step before the host waits.

  Args:
    batches: device batches with the iterator's state after each.
    report: records the metrics.

  Raises:
    Diverged: if a metric of the last active run is NaN or infinite, with its name and step; that step is not
      saved.
  """
  first = int(functions.split(state)[0].step)
  saved, pending, goodput = dict.fromkeys(functions.save, first), None, report.goodput
  for run in tuple(report.live):
    if cadence.stop(report.validations[run]):
      report.finish(run)  # before this call
  if not report.live:
    return state
  with stop_requests() as stop, goodput.measure_training():
    for i, fetched in zip(range(first + 1, cadence.steps + 1), goodput.measure_waiting(batches)):
      profiler.start_before(i)
      with jax.transfer_guard('disallow'), goodput.measure_step():
        state, metrics = functions.step(state, fetched.batch)
      profiler.stop_after(i, state)
      stopping = stop(i)  # read once: a later signal counts for the next step
      evaluated = i % cadence.evaluate_every == 0 or i == cadence.steps
      if pending:
        _record(report, cadence, *pending)
      pending = i, metrics, fetched
      if stopping or i == cadence.steps:
        tier = next(iter(functions.save))
      else:
        tier = _find_due_tier(i, saved, evaluated, cadence, report)
      if tier or evaluated:
        _record(report, cadence, *pending)
        pending = None
        with report.exclude_from_rate():
          for run, one in enumerate(functions.split(state)):
            if run in report.live:
              # After a stop signal there is little time: save only.
              with goodput.measure('evaluating'):
                values = functions.evaluate(one) if evaluated and not stopping else {}
              if not report.record_evaluation(i, run, values):
                continue
              has_ended = bool(values) and cadence.stop(report.validations[run])
              if due := next(iter(functions.save)) if has_ended else tier:
                with goodput.measure('saving'):
                  functions.save[due](run, one, fetched.state, values.get('loss'))
              if has_ended:
                report.finish(run)
        if tier:
          # A save in a durable tier makes one in the less durable tiers unnecessary.
          saved |= {other: i for other in itertools.dropwhile(lambda other: other != tier, functions.save)}
          goodput.record_save(i, tier)
      if stopping:
        print_status(f'stopped at step {i} (saved); run the same command to resume')
      if stopping or not report.live:
        break
  return state


def _find_due_tier(
  i: int, saved: Mapping[str, int], evaluated: bool, cadence: Cadence, report: Report
) -> str | None:
  """The most durable tier that is due to save after step i; `saved` has the step of each tier's last save."""
  for tier, last in saved.items():
    if cadence.save[tier](i, i - last, evaluated, report.save_duration(tier), report.step_seconds):
      return tier
  return None


def _record(report, cadence, i, metrics, fetched) -> None:
  report.record_step(i, metrics, fetched, i % cadence.log_every == 0 or i == cadence.steps)


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[int], bool]]:
  """A function: step → whether to stop after it, because of a SIGTERM or Ctrl-C; the same in all
  processes."""
  if jax.process_count() > 1:
    with processes.interrupt_requests_preemption():
      yield processes.preemption_requested
  else:
    with _SignalHandler() as handler:
      yield lambda step: handler.requested


class _SignalHandler:
  """Records a SIGTERM or SIGINT instead of exiting; a second one exits."""

  def __enter__(self) -> '_SignalHandler':
    self.requested, self.before = False, {}
    for number in (signal.SIGTERM, signal.SIGINT):
      self.before[number] = signal.signal(number, self.handle)
    return self

  def handle(self, number, frame) -> None:
    self.requested = True
    signal.signal(number, self.before[number])

  def __exit__(self, *error) -> None:
    for number, handler in self.before.items():
      signal.signal(number, handler)
