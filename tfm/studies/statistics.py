"""What a few seeds can tell: intervals, paired differences, exact permutation tests, Holm's correction."""

import dataclasses
import gc
import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats
from statsmodels.stats.multitest import multipletests


# An interval is meant to hold the mean this often; a difference is shown where its corrected p is at most 1 - LEVEL.
LEVEL = 0.95
SIGNIFICANT = round(1 - LEVEL, 10)
RESAMPLES = 9999
# Up to this many pairs all flips of signs are counted; beyond, as many are drawn.
EXACT = 16

Values = Mapping[int, float]


@dataclasses.dataclass(frozen=True)
class Summary:
  """What is known of one arm: its mean over n seeds, their standard deviation (None for one) and range, the interval."""

  n: int
  mean: float
  deviation: float | None
  least: float
  most: float
  interval: tuple[float, float] | None


@dataclasses.dataclass(frozen=True)
class Comparison:
  """One arm beside the base, over the seeds that finished in both.

  Attributes:
    difference: of the pairs, arm minus base: their Summary; None without a pair.
    p, corrected: of the permutation test, and after Holm's correction over all arms compared.
    reachable: the smallest `corrected` that these numbers of seeds can reach, however large the differences.
    verdict: 'better', 'worse', 'no difference shown', or 'not compared' where there is no pair.
    reason: half a sentence: the p, or that the seeds are too few and how many would do.
  """

  difference: Summary | None
  p: float | None
  corrected: float | None
  reachable: float | None
  verdict: str
  reason: str


def interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
  """Percentile bootstrap interval of the mean (Efron and Tibshirani 1993, chapter 13), the same at each call.

  It never leaves the range of the values. For two and for three values it is that range, as a mean of resampled
  values is their least one with probability 1/4 or 1/27; for one value there is none. Such a range of n values with
  symmetric noise holds the mean with probability 1 - 2 / 2ⁿ: see `coverage`.
  """
  if len(values) < 2:
    return None
  found = stats.bootstrap(
    (np.asarray(values, float),),
    np.mean,
    confidence_level=level,
    n_resamples=RESAMPLES,
    method='percentile',
    rng=np.random.default_rng(0),
  ).confidence_interval
  return float(found.low), float(found.high)


def coverage(n: int) -> float:
  """How often an `interval` of n values with symmetric noise holds their mean at most: 1 - 2 / 2ⁿ, or LEVEL.

  Further out than the least and the most of n values it cannot reach, and all n lie on one side of the mean with
  probability 2 / 2ⁿ.
  """
  return min(LEVEL, 1 - smallest(n))


def summary(values: Sequence[float]) -> Summary:
  """Mean, deviation (divided by n - 1), range and `interval`.

  Raises:
    ValueError: without a value.
  """
  if not len(values):
    raise ValueError('there is no value to summarise; an arm needs one finished seed at least')
  n = len(values)
  return Summary(
    n,
    float(np.mean(values)),
    float(np.std(values, ddof=1)) if n > 1 else None,
    float(np.min(values)),
    float(np.max(values)),
    interval(values),
  )


def permutation(differences: Sequence[float]) -> float:
  """Two-sided p of paired differences under flips of their signs (Fisher 1935, §21).

  p = share of the 2ⁿ flips whose mean is at least as far from 0 as the one found; all flips are counted up to
  n = EXACT, and 2^EXACT drawn ones beyond. It is never below `smallest(n)`.
  """
  differences = np.asarray(differences, float)
  if len(differences) == 1:
    return 1.0
  return float(
    stats.permutation_test(
      (differences,), np.mean, permutation_type='samples', n_resamples=2**EXACT, rng=np.random.default_rng(0)
    ).pvalue
  )


def smallest(n: int) -> float:
  """The least p that a `permutation` of n pairs can give: 2 / 2ⁿ, of the two flips that are furthest out."""
  return 2.0 ** (1 - n)


def holm(ps: Sequence[float]) -> list[float]:
  """Holm's (1979) step-down correction: the chance of any false difference among all stays at most p."""
  gc.freeze()  # statsmodels collects garbage here, which among the objects of JAX takes a quarter of a second
  try:
    return multipletests(ps, method='holm')[1].tolist() if len(ps) else []
  finally:
    gc.unfreeze()


def needed(arms: int) -> int:
  """The least number of seeds with which one of so many arms can be shown to differ: arms · 2 / 2ⁿ ≤ SIGNIFICANT."""
  return math.ceil(1 + math.log2(arms / SIGNIFICANT))


def compare(
  values: Mapping[str, Values], bases: Mapping[str, str], lower_is_better: bool
) -> dict[str, Comparison]:
  """Every arm beside its base, paired by seed: values[arm][seed]; `bases` tells whom each arm is compared with, and one
  that is its own base is left out.

  Raises:
    ValueError: if a base is no arm of `values`.
  """
  for base in bases.values():
    if base not in values:
      raise ValueError(f'the base {base!r} is no arm; the arms are {", ".join(values)}')
  pairs = {
    arm: [of_arm[seed] - values[bases[arm]][seed] for seed in of_arm if seed in values[bases[arm]]]
    for arm, of_arm in values.items()
    if bases.get(arm, arm) != arm
  }
  compared = [arm for arm, differences in pairs.items() if differences]
  ps = {arm: permutation(pairs[arm]) for arm in compared}
  corrected = dict(zip(compared, holm([*ps.values()])))
  # Holm's correction rises with every p, so the least ps give the least corrected ones.
  reachable = dict(zip(compared, holm([smallest(len(pairs[arm])) for arm in compared])))

  def one(arm):
    if arm not in ps:
      return Comparison(
        None, None, None, None, 'not compared', f'no finished seed in common with {bases[arm]}'
      )
    difference = summary(pairs[arm])
    verdict, reason = 'no difference shown', p_value(corrected[arm])
    if corrected[arm] <= SIGNIFICANT:
      verdict = 'better' if (difference.mean < 0) == lower_is_better else 'worse'
    elif reachable[arm] > SIGNIFICANT:
      reason = (
        f'too few seeds: {count(difference.n, "seed")} and {count(len(compared), "comparison")} cannot go below '
        f'{p_value(reachable[arm])}, {needed(len(compared))} seeds could'
      )
    return Comparison(difference, ps[arm], corrected[arm], reachable[arm], verdict, reason)

  return {arm: one(arm) for arm in pairs}


def p_value(p: float) -> str:
  """As it is written: three decimals at most, and never a plain zero."""
  return f'p = {p:.2f}' if p >= 0.1 else f'p = {p:.3f}' if p >= 0.001 else 'p < 0.001'


def count(n: int, noun: str) -> str:
  """'1 seed', '2 seeds'."""
  return f'{n} {noun}' if n == 1 else f'{n} {noun}s'
