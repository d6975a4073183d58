"""Statistics of a few seeds: intervals, paired differences, exact permutation tests, Holm's correction."""

import dataclasses
import gc
import math
from collections.abc import Mapping, Sequence

import numpy as np

from tfm.errors import importing_extra


with importing_extra('ablation'):
  from scipy import stats
  from statsmodels.stats.multitest import multipletests


# The nominal level of an interval; a difference is shown where its corrected p is at most 1 - LEVEL.
LEVEL = 0.95
SIGNIFICANT = round(1 - LEVEL, 10)
RESAMPLES = 9999
# Up to this many pairs all sign flips are enumerated; beyond, 2^EXACT are drawn at random.
EXACT = 16

Values = Mapping[int, float]


@dataclasses.dataclass(frozen=True)
class Summary:
  """One arm over n seeds.

  Attributes:
    deviation: standard deviation, divided by n - 1; None for one seed.
    minimum, maximum: over the seeds.
    interval: bootstrap interval of the mean; None for one seed.
  """

  n: int
  mean: float
  deviation: float | None
  minimum: float
  maximum: float
  interval: tuple[float, float] | None


@dataclasses.dataclass(frozen=True)
class Comparison:
  """One arm compared with the base, over the seeds that finished in both.

  Attributes:
    difference: the Summary of arm minus base over the pairs; None without a pair.
    p, corrected: of the permutation test, before and after Holm's correction over all compared arms.
    reachable: the smallest `corrected` that these numbers of seeds can reach, for any size of the
      differences.
    verdict: 'better', 'worse', 'no difference shown', or 'not compared' without a pair.
    reason: a phrase: the p, or that there are too few seeds, and how many are needed.
  """

  difference: Summary | None
  p: float | None
  corrected: float | None
  reachable: float | None
  verdict: str
  reason: str


def bootstrap_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
  """Percentile bootstrap interval of the mean (Efron and Tibshirani 1993, chapter 13), with a fixed seed.

  It lies within the range of the values. For two or three values it is that range, because the mean of a
  resample is the smallest value with probability 1/4 or 1/27; for one value it is None. The range of n
  values with symmetric noise contains the mean with probability 1 - 2 / 2ⁿ: see `coverage`.
  """
  if len(values) < 2:
    return None
  result = stats.bootstrap(
    (np.asarray(values, float),),
    np.mean,
    confidence_level=level,
    n_resamples=RESAMPLES,
    method='percentile',
    rng=np.random.default_rng(0),
  ).confidence_interval
  return float(result.low), float(result.high)


def coverage(n: int) -> float:
  """Upper bound of the coverage of a `bootstrap_interval` of n values with symmetric noise: min(LEVEL, 1 - 2
  / 2ⁿ).

  The interval lies within the range of the values, and all n values lie on one side of the mean with
  probability 2 / 2ⁿ.
  """
  return min(LEVEL, 1 - smallest_p(n))


def summarize(values: Sequence[float]) -> Summary:
  """The Summary of one arm's values.

  Raises:
    ValueError: without any value.
  """
  if not len(values):
    raise ValueError('no value to summarize; an arm needs at least one finished seed')
  n = len(values)
  return Summary(
    n,
    float(np.mean(values)),
    float(np.std(values, ddof=1)) if n > 1 else None,
    float(np.min(values)),
    float(np.max(values)),
    bootstrap_interval(values),
  )


def permutation_p(differences: Sequence[float]) -> float:
  """Two-sided p of paired differences under sign flips (Fisher 1935, §21).

  p = share of the 2ⁿ flips whose mean is at least as far from 0 as the observed one; all flips are enumerated
  up to n = EXACT, and 2^EXACT are drawn beyond. It is never below `smallest_p(n)`.
  """
  differences = np.asarray(differences, float)
  if len(differences) == 1:
    return 1.0
  return float(
    stats.permutation_test(
      (differences,), np.mean, permutation_type='samples', n_resamples=2**EXACT, rng=np.random.default_rng(0)
    ).pvalue
  )


def smallest_p(n: int) -> float:
  """The smallest p that `permutation_p` of n pairs can return: 2 / 2ⁿ, from the two most extreme flips."""
  return 2.0 ** (1 - n)


def holm(ps: Sequence[float]) -> list[float]:
  """Holm's (1979) step-down correction: bounds the probability of any false difference by p."""
  gc.freeze()  # statsmodels runs the garbage collector, which takes 0.25 s with JAX's objects
  try:
    return multipletests(ps, method='holm')[1].tolist() if len(ps) else []
  finally:
    gc.unfreeze()


def seeds_needed(arms: int) -> int:
  """The smallest number of seeds that can show a difference among so many comparisons: arms · 2 / 2ⁿ ≤
  SIGNIFICANT.
  """
  return math.ceil(1 + math.log2(arms / SIGNIFICANT))


def compare_arms(
  values: Mapping[str, Values], bases: Mapping[str, str], lower_is_better: bool
) -> dict[str, Comparison]:
  """Compares every arm with its base, paired by seed.

  Args:
    values: arm → seed → value.
    bases: arm → its base; an arm that is its own base is not compared.

  Raises:
    ValueError: if a base is not in `values`.
  """
  for base in bases.values():
    if base not in values:
      raise ValueError(f'base={base!r} is not an arm; the arms are {", ".join(values)}')
  pairs = {
    arm: [of_arm[seed] - values[bases[arm]][seed] for seed in of_arm if seed in values[bases[arm]]]
    for arm, of_arm in values.items()
    if bases.get(arm, arm) != arm
  }
  compared = [arm for arm, differences in pairs.items() if differences]
  ps = {arm: permutation_p(pairs[arm]) for arm in compared}
  corrected = dict(zip(compared, holm([*ps.values()])))
  # Holm's correction is monotonic in every p, so the smallest ps give the smallest corrected ones.
  reachable = dict(zip(compared, holm([smallest_p(len(pairs[arm])) for arm in compared])))

  def compare_arm(arm):
    if arm not in ps:
      return Comparison(None, None, None, None, 'not compared', f'no common finished seed with {bases[arm]}')
    difference = summarize(pairs[arm])
    verdict, reason = 'no difference shown', format_p(corrected[arm])
    if corrected[arm] <= SIGNIFICANT:
      verdict = 'better' if (difference.mean < 0) == lower_is_better else 'worse'
    elif reachable[arm] > SIGNIFICANT:
      reason = (
        f'too few seeds: {format_count(difference.n, "seed")} and '
        f'{format_count(len(compared), "comparison")} cannot reach less than '
        f'{format_p(reachable[arm])}; {seeds_needed(len(compared))} seeds could'
      )
    return Comparison(difference, ps[arm], corrected[arm], reachable[arm], verdict, reason)

  return {arm: compare_arm(arm) for arm in pairs}


def format_p(p: float) -> str:
  """'p = 0.12', 'p = 0.031' or 'p < 0.001'."""
  return f'p = {p:.2f}' if p >= 0.1 else f'p = {p:.3f}' if p >= 0.001 else 'p < 0.001'


def format_count(n: int, noun: str) -> str:
  """'1 seed', '2 seeds'."""
  return f'{n} {noun}' if n == 1 else f'{n} {noun}s'
