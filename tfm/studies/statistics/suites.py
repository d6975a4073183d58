"""Aggregate scores over the tasks of a suite, with intervals (Agarwal et al. 2021, "Deep reinforcement
learning at the edge of the statistical precipice", §4)."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from tfm.errors import importing_extra
from tfm.shapes import Float
from tfm.studies.statistics.summary import ALPHA


with importing_extra('ablation'):
  from scipy import stats


DRAWS = 2000

# The scores of the runs of each task; tasks may have different numbers of runs N.
Scores = Sequence[Float[np.ndarray, '... N']]


@dataclasses.dataclass(frozen=True)
class Aggregate:
  """A number over all tasks, and its interval."""

  value: float
  low: float
  high: float


def interquartile_mean(scores: Scores) -> Float[np.ndarray, '...']:
  """The mean of the middle half of all runs of all tasks, from the 25th to the 75th percentile."""
  return stats.trim_mean(np.concatenate(scores, axis=-1), 0.25, axis=-1)


def probability_of_improvement(scores: Scores, base: Scores) -> Float[np.ndarray, '...']:
  """The probability that a run is better than one of the base, higher being better, as a mean over tasks.

  Of equal runs, also of two infinite ones, half count, as in Mann and Whitney's U.
  """
  pairs = [(own[..., :, None], others[..., None, :]) for own, others in zip(scores, base, strict=True)]
  shares = [((own > others).mean((-2, -1)) + (own >= others).mean((-2, -1))) / 2 for own, others in pairs]
  return np.mean(shares, axis=0)


def aggregate(statistic: Callable[..., np.ndarray], *scores: Scores, draws: int = DRAWS) -> Aggregate:
  """A statistic with its interval: percentiles over runs that are drawn again, in each task on its own.

  A stratified bootstrap: tasks are not drawn. With n runs of each task it is too narrow, by about
  √((n - 1) / n).

  Args:
    statistic: of as many scores as are given, such as `interquartile_mean`.
  """
  draw = np.random.default_rng(0)
  drawn = statistic(*([draw.choice(runs, (draws, len(runs))) for runs in of_arm] for of_arm in scores))
  method = 'linear' if np.isfinite(drawn).all() else 'nearest'  # between infinite ones there is nothing
  low, high = np.quantile(drawn, [ALPHA / 2, 1 - ALPHA / 2], method=method)
  return Aggregate(float(statistic(*scores)), float(low), float(high))
