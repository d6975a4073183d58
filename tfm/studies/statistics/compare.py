"""Compares arms with their bases: which is higher, lower, the same, or undecided."""

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from tfm.errors import importing_extra
from tfm.studies.statistics.contrasts import Contrasts, Values, fit_contrasts
from tfm.studies.statistics.shares import holm
from tfm.studies.statistics.spreads import find_noisy_arms
from tfm.studies.statistics.summary import ALPHA, Spread, format_p, pool_spreads


with importing_extra('ablation'):
  from scipy import stats


# From so many seeds of both arms on, arms that vary differently are compared by Welch's test.
WELCH_SEEDS = 5
# Values whose spread is at most this part of their size do not vary: that is rounding.
EXACT = 1e-9
CONSTANT = 'the values do not vary over the seeds'


@dataclasses.dataclass(frozen=True)
class Comparison:
  """One arm compared with its base.

  Attributes:
    difference: arm minus base; error: its standard error; None where there is none.
    interval: of the difference; all intervals of a metric hold together with probability LEVEL.
    p: of no difference, corrected for all comparisons of a metric.
    finding: 'higher' or 'lower' than the base, 'same' (within the margin), or 'undecided'.
    reason: a phrase on why it is undecided; '' otherwise.
    df, seeds: of Welch's test: degrees of freedom, and the seeds of the arm that has fewer; otherwise None.
  """

  finding: str
  difference: float | None = None
  error: float | None = None
  interval: tuple[float, float] | None = None
  p: float | None = None
  reason: str = ''
  df: float | None = None
  seeds: int | None = None


@dataclasses.dataclass(frozen=True)
class Analysis:
  """The comparisons of one metric.

  Attributes:
    comparisons: arm → Comparison, for every arm that is not its own base.
    floor: the noise of a run that neither its arm nor its seed explains, of all arms that vary alike; None
      if nothing is known of it.
    within: the deviation over seeds within these arms.
    arms: the number of these arms; blocked: whether seeds are blocks.
    noisy: the arms that vary otherwise.
    families: by how many such analyses the error probability is shared.
  """

  comparisons: Mapping[str, Comparison]
  floor: Spread | None
  within: Spread | None
  arms: int
  blocked: bool
  noisy: tuple[str, ...]
  families: int = 1

  @property
  def count(self) -> int:
    """The number of differences that are estimated."""
    return sum(comparison.difference is not None for comparison in self.comparisons.values())

  @property
  def tests(self) -> int:
    """The number of tests that share the error probability."""
    return self.count * self.families


def compare_arms(
  values: Mapping[str, Values], bases: Mapping[str, str], margin: float | None = None, families: int = 1
) -> Analysis:
  """Compares every arm with its base.

  Arms that vary alike are tested together by Dunnett's test with seeds as blocks (`fit_contrasts`), the
  others by Welch's (1947) with Holm's correction. Each of the two groups has a share of the error
  probability, by its number of comparisons. A difference is the same as none within `margin` if its interval
  lies within ± margin: two one-sided tests (Schuirmann 1987; Lakens 2017), each at half of ALPHA.

  Args:
    values: arm → seed → value.
    bases: arm → its base; an arm that is its own base, or has none, is not compared.
    margin: a difference that does not matter; None: no test of equality.
    families: number of such analyses that share the error probability (Bonferroni).

  Raises:
    ValueError: if a base is not in `values`.
  """
  for base in bases.values():
    if base not in values:
      raise ValueError(f'base={base!r} is not an arm; the arms are {", ".join(values)}')
  pairs = [(arm, bases[arm]) for arm in values if bases.get(arm, arm) != arm]
  noisy = [] if is_paired(values) else find_noisy_arms(values)
  alike = {arm: of_arm for arm, of_arm in values.items() if arm not in noisy}
  pooled = [pair for pair in pairs if not {*pair} & {*noisy}]
  apart = [pair for pair in pairs if {*pair} & {*noisy}]
  contrasts = fit_contrasts(alike, pooled) if alike else None
  found = _test_pooled(contrasts, alike, pooled, margin, families * len(pairs)) if pooled else {}
  found |= _test_apart(values, apart, margin, families * len(pairs)) if apart else {}
  return Analysis(
    {arm: found[arm] for arm, _ in pairs},
    contrasts.spread if contrasts else None,
    pool_spreads([[*of_arm.values()] for of_arm in alike.values()]),
    len(alike),
    bool(contrasts and contrasts.blocked),
    tuple(noisy),
    families,
  )


def is_paired(values: Mapping[str, Values]) -> bool:
  """Whether there are two arms with common seeds: how each of them varies does not matter to differences
  within seeds.
  """
  return len(values) == 2 and len(set.intersection(*map(set, values.values()))) > 1


def _test_pooled(
  contrasts: Contrasts | None,
  values: Mapping[str, Values],
  pairs: Sequence[tuple[str, str]],
  margin: float | None,
  total: int,
) -> dict[str, Comparison]:
  """Dunnett's test of pairs that have the share len(pairs) / total of ALPHA."""
  if contrasts is None:
    reason = 'one seed of each arm cannot show how much seeds differ'
    return {
      arm: Comparison('undecided', _mean_difference(values, arm, base), reason=reason) for arm, base in pairs
    }
  size = max(abs(value) for of_arm in values.values() for value in of_arm.values())
  if contrasts.spread.deviation <= EXACT * size:
    return {
      arm: Comparison('undecided', float(difference), reason=CONSTANT)
      for (arm, _), difference in zip(pairs, contrasts.differences)
    }
  share = len(pairs) / total
  half = contrasts.critical_value(1 - ALPHA * share) * contrasts.errors
  columns = contrasts.differences, contrasts.errors, half, contrasts.correct_p() / share
  return {arm: _decide(*map(float, row), margin) for (arm, _), *row in zip(pairs, *columns)}


def _test_apart(
  values: Mapping[str, Values], pairs: Sequence[tuple[str, str]], margin: float | None, total: int
) -> dict[str, Comparison]:
  """Welch's test of pairs that have the share len(pairs) / total of ALPHA, from WELCH_SEEDS seeds on."""
  found, tests, bases = {}, {}, dict(pairs)
  for arm, base in pairs:
    samples = [[*values[name].values()] for name in (arm, base)]
    difference, fewest = _mean_difference(values, arm, base), min(map(len, samples))
    if fewest < WELCH_SEEDS:
      found[arm] = Comparison(
        'undecided', difference, reason=f'spreads differ; {WELCH_SEEDS} seeds of each allow a test'
      )
    elif not any(map(np.ptp, samples)):
      found[arm] = Comparison('undecided', difference, reason=CONSTANT)
    else:
      with warnings.catch_warnings():
        warnings.simplefilter('ignore', RuntimeWarning)  # that one of the two does not vary
        tests[arm] = stats.ttest_ind(*samples, equal_var=False)
  corrected = holm([test.pvalue for test in tests.values()])
  for (arm, test), p in zip(tests.items(), corrected):
    low, high = test.confidence_interval(1 - ALPHA / total)
    difference = (low + high) / 2
    error = abs(difference / test.statistic) if test.statistic else math.nan
    decided = _decide(difference, error, (high - low) / 2, p * total / len(pairs), margin)
    fewest = min(len(values[arm]), len(values[bases[arm]]))
    found[arm] = dataclasses.replace(decided, df=float(test.df), seeds=fewest)
  return found


def _decide(difference: float, error: float, half: float, p: float, margin: float | None) -> Comparison:
  """The finding on a difference with the interval difference ± half."""
  low, high, p = difference - half, difference + half, min(1.0, p)
  if margin is not None and -margin < low and high < margin:
    finding = 'same'
  elif p <= ALPHA:
    finding = 'higher' if difference > 0 else 'lower'
  else:
    finding = 'undecided'
  reason = format_p(p) if finding == 'undecided' else ''
  return Comparison(finding, difference, error, (low, high), p, reason)


def _mean_difference(values: Mapping[str, Values], arm: str, base: str) -> float:
  return float(np.mean([*values[arm].values()]) - np.mean([*values[base].values()]))
