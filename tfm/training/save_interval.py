"""When a checkpoint is saved: with every evaluation, every so many steps, or at the interval that loses the
least time."""

import math
from collections.abc import Callable

from tfm.spec import PositiveFloat, PositiveInt


# (step, steps since the last save, whether it was evaluated, seconds of the last save, seconds of a step) →
# whether to save. The seconds are the same in all processes; those of a save are 0 before the first save.
Interval = Callable[[int, int, bool, float, float], bool]


def evaluation() -> Interval:
  """With every evaluation, so that each checkpoint has its loss."""
  return lambda step, since, evaluated, save_seconds, step_seconds: evaluated


def steps(every: PositiveInt) -> Interval:
  """Every so many steps."""
  return lambda step, since, evaluated, save_seconds, step_seconds: step % every == 0


def auto(hours: PositiveFloat = 24.0) -> Interval:
  """Every √(2 · seconds of a save · seconds between failures) (Young 1974; Daly 2006, eq. 1); first with an
  evaluation.

  The seconds of a save are those for which training waits. A shorter interval saves more often than failures
  cost, a longer one loses more to a failure than saves would have cost.

  Args:
    hours: mean time between failures of the whole run; for n machines, that of one divided by n.
  """
  return lambda step, since, evaluated, save_seconds, step_seconds: (
    since * step_seconds >= math.sqrt(2 * save_seconds * hours * 3600) if save_seconds else evaluated
  )


INTERVALS = {f.__name__: f for f in (evaluation, steps, auto)}
