"""Outcomes that are yes or no, such as a solved task: shares with exact intervals, and their tests."""

import dataclasses
import functools
import gc
from collections.abc import Mapping, Sequence

import numpy as np

from tfm.errors import importing_extra
from tfm.studies.statistics.summary import ALPHA, LEVEL, POWER


with importing_extra('ablation'):
  from scipy import stats
  from statsmodels.stats.multitest import multipletests


@dataclasses.dataclass(frozen=True)
class Share:
  """k of n runs."""

  k: int
  n: int

  @property
  def value(self) -> float:
    return self.k / self.n

  @property
  def interval(self) -> tuple[float, float]:
    """The exact interval of the probability (Clopper & Pearson 1934)."""
    found = stats.binomtest(self.k, self.n).proportion_ci(LEVEL, method='exact')
    return float(found.low), float(found.high)


def compare_shares(shares: Mapping[str, Share], bases: Mapping[str, str]) -> dict[str, float]:
  """Arm → p of an equal share in its base: Boschloo's test (1970) with Holm's correction."""
  pairs = [(arm, bases[arm]) for arm in shares if bases.get(arm, arm) != arm]
  ps = holm([boschloo_p(shares[arm], shares[base]) for arm, base in pairs])
  return {arm: p for (arm, _), p in zip(pairs, ps)}


@functools.cache  # a report asks for the same pair in several tables
def boschloo_p(a: Share, b: Share) -> float:
  """Two-sided p of equal shares: an unconditional exact test by Fisher's p as statistic (Boschloo 1970)."""
  return float(stats.boschloo_exact([[a.k, b.k], [a.n - a.k, b.n - b.k]]).pvalue)


def seeds_to_decide(a: Share, b: Share, comparisons: int, most: int) -> int | None:
  """The fewest seeds of each arm, from which on shares of these sizes differ with probability POWER; None for
  more than `most`.

  As Holm's correction of the smallest p: comparisons · p ≤ ALPHA. From which on, as the power of so few
  outcomes rises and falls from one number of seeds to the next.
  """
  found = None
  for n in range(most, max(a.n, b.n), -1):
    differ = _boschloo_table(n) <= ALPHA / comparisons
    at_a, at_b = (stats.binom.pmf(range(n + 1), n, share.value) for share in (a, b))
    if at_a @ differ @ at_b < POWER:
      break
    found = n
  return found


@functools.cache
def _boschloo_table(n: int) -> np.ndarray:
  """Boschloo's two-sided p of every pair of k of n runs, at a grid of common shares."""
  k, shares = np.arange(n + 1), np.linspace(0, 1, 201)
  # Fisher's p of a larger share of the first: of so many among the runs that are yes in either.
  fisher = stats.hypergeom.sf(k[:, None] - 1, 2 * n, k[:, None] + k, n).ravel()
  of_one = stats.binom.pmf(k[:, None], n, shares)
  order = np.argsort(fisher)
  below = np.cumsum((of_one[:, None] * of_one).reshape(-1, len(shares))[order], 0)
  last = np.searchsorted(fisher[order], fisher * (1 + 1e-9), side='right') - 1
  larger = below[last].max(-1).reshape(n + 1, n + 1)
  return np.minimum(1, 2 * np.minimum(larger, larger.T))


def holm(ps: Sequence[float]) -> list[float]:
  """Holm's (1979) step-down correction: bounds the probability of any false difference by p."""
  gc.freeze()  # statsmodels runs the garbage collector, which takes 0.25 s with JAX's objects
  try:
    return multipletests(ps, method='holm')[1].tolist() if len(ps) else []
  finally:
    gc.unfreeze()
