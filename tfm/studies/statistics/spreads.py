"""Whether arms vary alike over their seeds, which tests with one noise for all need."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tfm.errors import importing_extra
from tfm.studies.statistics.contrasts import Values, fit_contrasts
from tfm.studies.statistics.summary import ALPHA, Spread, pool_spreads


with importing_extra('ablation'):
  from scipy import stats


# An arm whose standard deviation is so many times that of the others makes a pooled test lose its level.
RATIO = 3


def find_noisy_arms(values: Mapping[str, Values]) -> list[str]:
  """The arms to be taken out, noisiest first, until the others vary alike.

  The noisiest arms, fewer than half, are also held against the rest together: each of several hides behind
  the others. Arms with one seed tell nothing and stay.
  """
  pool, noisy = {arm: of_arm for arm, of_arm in values.items() if len(of_arm) > 1}, []
  while len(pool) > 1:
    ratios = {arm: variance_ratio(*compare_spreads([arm], pool)) for arm in pool}
    order = sorted(pool, key=ratios.get, reverse=True)
    groups = (order[:k] for k in range(1, max(2, (len(pool) + 1) // 2)))
    differ = any(
      is_far_noisier(*compare_spreads(group, pool), math.comb(len(pool), len(group))) for group in groups
    )
    if not differ and brown_forsythe_p(list_residuals(pool)) > ALPHA:
      break
    noisy.append(order[0])
    del pool[order[0]]
  # Without a second arm that varies like it, the last one is no pool.
  return noisy + [*pool] if noisy and len(pool) == 1 else noisy


def compare_spreads(arms: Sequence[str], values: Mapping[str, Values]) -> tuple[Spread, Spread]:
  """How some arms vary, and how the others do, so that the squared ratio is F distributed if they vary alike.

  Where the others share seeds, theirs is what remains without the effects of seeds, and an arm's is that of
  its differences from the mean m of the k others at its seed, of variance σ² (1 + 1 / k). Those of several
  arms share the m: their ratio is so distributed for many others only.
  """
  others = {name: of_arm for name, of_arm in values.items() if name not in arms}
  fit = fit_contrasts(others, [])
  effects = seed_effects(others) if fit and fit.blocked else {}
  differences = [
    [value - effects[seed] for seed, value in values[arm].items() if seed in effects] for arm in arms
  ]
  if min(map(len, differences)) < 2:
    return tuple(
      pool_spreads([[*each.values()] for each in part])
      for part in ([values[arm] for arm in arms], others.values())
    )
  spread = pool_spreads(differences)
  return Spread(spread.deviation / math.sqrt(1 + 1 / len(others)), spread.df), fit.spread


def is_far_noisier(spread: Spread, others: Spread, choices: int) -> bool:
  """Whether the deviation of the noisiest arms is over RATIO times that of the others, and not by chance.

  An F test, corrected for having chosen them of so many sets of arms (Bonferroni).
  """
  ratio = variance_ratio(spread, others)
  return ratio > RATIO**2 and float(stats.f.sf(ratio, spread.df, others.df)) * choices <= ALPHA


def variance_ratio(spread: Spread, others: Spread) -> float:
  """The squared ratio of two deviations; inf beside others that do not vary, and 0 if neither does."""
  if others.deviation:
    return (spread.deviation / others.deviation) ** 2
  return math.inf if spread.deviation else 0.0


def brown_forsythe_p(samples: Sequence[Sequence[float]]) -> float:
  """p of equal spreads, by the distances from the medians (Brown & Forsythe 1974); 1 under three seeds, of
  which both are as far from their median.
  """
  if min(map(len, samples)) < 3 or not any(np.ptp(values) for values in samples):
    return 1.0
  return float(stats.levene(*samples, center='median').pvalue)


def list_residuals(values: Mapping[str, Values]) -> list[list[float]]:
  """The values of each arm without its mean and, where arms share seeds, without the effects of seeds."""
  fit = fit_contrasts(values, [])
  effects = seed_effects(values) if fit and fit.blocked else {}
  return [
    [value - float(np.mean([*of_arm.values()])) - effects.get(seed, 0.0) for seed, value in of_arm.items()]
    for of_arm in values.values()
  ]


def seed_effects(values: Mapping[str, Values]) -> dict[int, float]:
  """Seed → the mean over arms of what its values are above the mean of their arm."""
  rest = {}
  for of_arm in values.values():
    mean = float(np.mean([*of_arm.values()]))
    for seed, value in of_arm.items():
      rest.setdefault(seed, []).append(value - mean)
  return {seed: float(np.mean(found)) for seed, found in rest.items()}
