"""What a number of seeds can show: the power of Dunnett's test, and the seeds that would decide."""

import math
from collections.abc import Callable

from tfm.errors import importing_extra
from tfm.studies.statistics.compare import Analysis, Comparison
from tfm.studies.statistics.contrasts import critical_value, exchangeable
from tfm.studies.statistics.summary import ALPHA, LEVEL, POWER, Spread


with importing_extra('ablation'):
  from scipy import optimize, stats


# More seeds than this are not searched for.
MAX_SEEDS = 50


def noise_df(seeds: int, arms: int, blocked: bool) -> int:
  """Degrees of freedom of the noise of `arms` arms of `seeds` seeds each."""
  return (arms - 1) * (seeds - 1) if blocked else arms * (seeds - 1)


def power_to_differ(effect: float, seeds: int, df: int, comparisons: int) -> float:
  """The probability that an arm whose mean is `effect` deviations from the base's is shown to differ, in this
  direction.

  P(T > c), T noncentral t with δ = |effect| · √(seeds / 2), c the critical value of all comparisons.
  """
  c = critical_value(exchangeable(comparisons), df, LEVEL)
  return float(stats.nct.sf(c, df, abs(effect) * math.sqrt(seeds / 2)))


def power_to_equal(effect: float, margin: float, seeds: int, df: int, comparisons: int) -> float:
  """The probability that the interval of a difference of `effect` deviations lies within ± `margin`.

  P(|d| + c · s · √(2 / seeds) < margin), with the noise s taken as known.
  """
  error = math.sqrt(2 / seeds)
  room = margin - critical_value(exchangeable(comparisons), df, LEVEL) * error
  if room <= 0:
    return 0.0
  return float(stats.norm.cdf((room - effect) / error) - stats.norm.cdf((-room - effect) / error))


def smallest_difference(spread: Spread, seeds: int, comparisons: int) -> float:
  """The difference that is shown with probability POWER, in the units of `spread`; inf if none is."""

  def missing(effect):
    return power_to_differ(effect, seeds, spread.df, comparisons) - POWER

  most = 1.0
  while missing(most) < 0:
    most *= 2
    if most > 1e6:
      return math.inf
  return spread.deviation * optimize.brentq(missing, 0, most, xtol=1e-3)


def seeds_to_decide(difference: float, analysis: Analysis, margin: float | None) -> int | None:
  """The fewest seeds of each arm with which a difference of this size is shown, or shown to be within
  ± margin, with probability POWER; None for more than MAX_SEEDS.
  """
  noise, comparisons = analysis.floor.deviation, analysis.tests
  effect = abs(difference) / noise

  def decides(seeds):
    df = noise_df(seeds, analysis.arms, analysis.blocked)
    return power_to_differ(effect, seeds, df, comparisons) >= POWER or (
      margin is not None and power_to_equal(effect, margin / noise, seeds, df, comparisons) >= POWER
    )

  return _fewest(decides, 1)


def seeds_to_decide_apart(comparison: Comparison, comparisons: int, margin: float | None) -> int | None:
  """The same for arms of unequal spreads, by Welch's test at 1 / comparisons of ALPHA: the error of the
  difference falls as 1 / √seeds, and degrees of freedom grow as seeds - 1.
  """
  now, level = comparison.seeds, ALPHA / comparisons

  def decides(seeds):
    error = comparison.error * math.sqrt(now / seeds)
    df, effect = comparison.df * (seeds - 1) / (now - 1), abs(comparison.difference) / error
    c = stats.t.isf(level / 2, df)
    if stats.nct.sf(c, df, effect) >= POWER:
      return True
    room = 0 if margin is None else margin / error - c
    return room > 0 and stats.norm.cdf(room - effect) - stats.norm.cdf(-room - effect) >= POWER

  return _fewest(decides, now)


def _fewest(decides: Callable[[int], bool], low: int) -> int | None:
  """The fewest seeds that decide, more than `low`; None for more than MAX_SEEDS."""
  if not decides(MAX_SEEDS):
    return None
  high = MAX_SEEDS
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (low, middle) if decides(middle) else (middle, high)
  return high
