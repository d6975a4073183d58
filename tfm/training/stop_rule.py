"""Whether a run has finished before its last step, by its validations."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

from tfm import spec
from tfm.spec import PositiveInt


class StopRule(Protocol):
  """A predicate on the validations of a run so far, the metrics of each by name.

  Attributes:
    metric: the one that it reads; '': none.
    is_goal: whether it ends a run because a value is reached, so that fewer steps are better.
  """

  metric: str
  is_goal: bool

  def __call__(self, validations: Sequence[Mapping[str, float]]) -> bool: ...


@dataclasses.dataclass(frozen=True)
class Never:
  """Trains to the last step."""

  metric = ''
  is_goal = False

  def __call__(self, validations):
    return False


@dataclasses.dataclass(frozen=True)
class AtLeast:
  """Once a metric is at least `value`, such as the accuracy of a task that is solved."""

  metric: str
  value: float
  is_goal = True

  def __call__(self, validations):
    return bool(validations) and validations[-1][self.metric] >= self.value


@dataclasses.dataclass(frozen=True)
class AtMost:
  """Once a metric is at most `value`, such as the loss of a target."""

  metric: str
  value: float
  is_goal = True

  def __call__(self, validations):
    return bool(validations) and validations[-1][self.metric] <= self.value


@dataclasses.dataclass(frozen=True)
class Patience:
  """Once a metric has not been better than before for `evaluations` evaluations (Prechelt 1998)."""

  evaluations: PositiveInt
  metric: str = 'loss'
  higher_is_better: bool = False
  is_goal = False

  def __call__(self, validations):
    values = [each[self.metric] * (-1 if self.higher_is_better else 1) for each in validations]
    return len(values) > self.evaluations and min(values[-self.evaluations :]) >= min(
      values[: -self.evaluations]
    )


STOP_RULES = {'never': Never, 'at_least': AtLeast, 'at_most': AtMost, 'patience': Patience}


def parse_stop_rule(text: str) -> StopRule:
  """The rule of a spec such as `at_least('accuracy', 0.99)`."""
  return spec.build_from_table(text, STOP_RULES)
