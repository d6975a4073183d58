"""The best learning rate of an arm: a parabola through the results of a grid of rates."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfm.errors import importing_extra
from tfm.studies.statistics.summary import LEVEL, Spread
from tfm.studies.study import count_survivors


with importing_extra('ablation'):
  from scipy import stats


# Where results worsen over so many times as much on one side of the best rate as on the other, and by more
# than this part of the best, that is the cliff beside which training fails, and no side of a parabola.
CLIFF = 5.0, 0.15


@dataclasses.dataclass(frozen=True)
class Optimum:
  """The best of several learning rates, and between them.

  Attributes:
    rate: of the vertex; the best of the grid where no parabola has one.
    value: the metric there, by the parabola.
    best: the best of the grid.
    is_at_edge: whether the best is the smallest or largest that was tried: the range may be too narrow.
  """

  rate: float
  value: float
  best: float
  is_at_edge: bool


def find_optimum(reached: Mapping[float, float], tried: Sequence[float], lower_is_better: bool) -> Optimum:
  """The vertex of the parabola in log(rate) through the best rate and its two neighbours.

  It lies between the neighbours. Without two neighbours that finished, and beside a cliff (`CLIFF`), it is
  the best rate itself.

  Args:
    reached: rate → metric; tried: all rates, also those that diverged or were dropped in a rung.
  """
  best = (min if lower_is_better else max)(reached, key=reached.get)
  is_at_edge = len(tried) > 1 and best in (min(tried), max(tried))
  points = find_neighbours(reached, tried, best)
  if not _is_parabola(reached, points, best):
    return Optimum(best, reached[best], best, is_at_edge)
  a, b, c = np.linalg.solve(_design(points, best), [reached[rate] for rate in points])
  # The best of three points is the extremum of its parabola, unless all three are equal.
  x = -b / (2 * c) if c else 0.0
  return Optimum(float(f'{best * math.exp(x):.3g}'), float(a + b * x / 2), best, is_at_edge)


def choose_rate(outcome: Mapping[str, Any], tried: Sequence[float], lower_is_better: bool) -> Optimum:
  """The optimum of the metric that the rates reached, or of the steps until its goal, if any reached one.

  A run that ends at the goal of `training.stop_when` is not the better for what its last steps went beyond
  it. So the rates that reach it are compared by their steps; the optimum's value is then the metric on the
  line between the rates that were tried.

  Args:
    outcome: of the rates in full, as in arm.json; tried: all rates.
  """
  reached, steps = _by_rate(outcome)
  if not steps:
    return find_optimum(reached, tried, lower_is_better)
  optimum = find_optimum(steps, tried, lower_is_better=True)
  value = np.interp(math.log(optimum.rate), np.log([*reached]), [*reached.values()])
  return dataclasses.replace(optimum, value=float(value))


def find_interval(
  reached: Mapping[float, float], tried: Sequence[float], best: float, noise: Spread
) -> tuple[float, float] | None:
  """The rates that may be the vertex, given the noise of one result (Fieller 1954); None if every rate may,
  because the results differ too little, or without a parabola.

  With the slope g(x) = b + 2 c x of the parabola at x = log(rate / best): all x at which g²(x) ≤ t² Var g(x).
  """
  points = find_neighbours(reached, tried, best)
  if not _is_parabola(reached, points, best):
    return None
  inverse = np.linalg.inv(_design(points, best))
  _, b, c = inverse @ [reached[rate] for rate in points]
  covariance = noise.deviation**2 * inverse @ inverse.T
  t = float(stats.t.ppf((1 + LEVEL) / 2, noise.df))
  # g² - t² Var g = A x² + B x + C.
  A = 4 * (c**2 - t**2 * covariance[2, 2])
  B = 4 * (b * c - t**2 * covariance[1, 2])
  C = b**2 - t**2 * covariance[1, 1]
  if A <= 0 or B**2 <= 4 * A * C:
    return None
  root = math.sqrt(B**2 - 4 * A * C)
  return best * math.exp((-B - root) / (2 * A)), best * math.exp((-B + root) / (2 * A))


def rate_beyond(tried: Sequence[float], end: float) -> float:
  """The rate beyond the lowest or highest of those tried, as far as its neighbour on the other side by their
  logarithms.
  """
  neighbour = sorted(tried, key=lambda rate: abs(math.log(rate / end)))[1]
  return float(f'{end**2 / neighbour:.3g}')


def find_neighbours(reached: Mapping[float, float], tried: Sequence[float], best: float) -> list[float]:
  """The best rate and the rates tried next to it, ascending, without those that have no result."""
  grid = sorted(tried)
  i = grid.index(best)
  return [rate for rate in grid[max(0, i - 1) : i + 2] if rate in reached]


def find_dropped_neighbours(outcome: Mapping[str, Any], best: float) -> list[float]:
  """The rates next to the best that no run tried in full, as a rung dropped them; ascending.

  Args:
    outcome: of the rates in full and in rungs, as in arm.json.
  """
  rungs = [*outcome.get('rungs', {}).values()]
  grid = sorted(map(float, list_rates_tried(dict(rates=outcome))))
  diverged = {float(rate) for each in (outcome, *rungs) for rate in each.get('diverged', {})}
  in_full = {float(rate) for rate in outcome.get('reached', {})}
  i = grid.index(best)
  return [rate for rate in grid[max(0, i - 1) : i + 2] if rate not in in_full | diverged]


def _is_parabola(reached: Mapping[float, float], points: Sequence[float], best: float) -> bool:
  """Whether the points are the best rate and two neighbours, of which none is over a cliff."""
  rises = sorted(abs(reached[rate] - reached[best]) for rate in points if rate != best)
  return len(rises) == 2 and rises[1] <= max(CLIFF[0] * rises[0], CLIFF[1] * abs(reached[best]))


def _design(rates: Sequence[float], center: float) -> np.ndarray:
  """Rows 1, x, x² of a parabola in x = log(rate / center)."""
  return np.vander([math.log(rate / center) for rate in rates], 3, increasing=True)


def rank_correlation(before: Mapping[float, float], after: Mapping[float, float]) -> float | None:
  """Spearman's correlation of the results of the rates of two rungs; None with fewer than three in both, or
  with equal results.
  """
  shared = [rate for rate in before if rate in after]
  pair = [[outcome[rate] for rate in shared] for outcome in (before, after)]
  if len(shared) < 3 or not all(map(np.ptp, pair)):
    return None
  return float(stats.spearmanr(*pair).statistic)


def select_survivors(outcome: Mapping[str, Any], lower_is_better: bool) -> list[float]:
  """The better half of the rates, ascending: those that enter the next rung of successive halving (Jamieson &
  Talwalkar 2016); `study.count_survivors` of them. First come those that reached the goal, the fastest first.

  Args:
    outcome: of the rates of a rung, as in arm.json.
  """
  reached, steps = _by_rate(outcome)
  sign = 1 if lower_is_better else -1
  order = sorted(reached, key=lambda rate: (rate not in steps, steps.get(rate, sign * reached[rate])))
  return sorted(order[: count_survivors(len(order))])


def _by_rate(outcome: Mapping[str, Any]) -> tuple[dict[float, float], dict[float, float]]:
  """Rate → the metric that it reached, and → the steps until its goal; both ascending in the rate."""
  reached, steps = (
    dict(sorted((float(rate), x) for rate, x in outcome.get(key, {}).items())) for key in ('reached', 'steps')
  )
  return reached, steps


def list_rates_tried(record: Mapping[str, Any]) -> set[str]:
  """All rates that an arm's record has results of, as they are written there."""
  tried = record.get('rates') or {}
  return {
    rate
    for outcome in (tried, *tried.get('rungs', {}).values())
    for rate in (*outcome.get('reached', ()), *outcome.get('diverged', ()))
  }
