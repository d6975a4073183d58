"""Shares of seeds: exact intervals and Boschloo's test, against sums over all tables."""

import numpy as np
import pytest
from scipy import stats

from tfm.studies.statistics.shares import Share, boschloo_p, compare_shares, holm, seeds_to_decide


@pytest.mark.parametrize('k, n', [(0, 3), (4, 8), (7, 8), (8, 8)])
def test_intervals_are_exact(k, n):
  """At each end the binomial tail is 2.5 %."""
  low, high = Share(k, n).interval
  assert (stats.binom.sf(k - 1, n, low) if k else low) == pytest.approx(0.025 if k else 0.0)
  assert (stats.binom.cdf(k, n, high) if k < n else high) == pytest.approx(0.025 if k < n else 1.0)


@pytest.mark.parametrize('a, b', [((3, 3), (0, 3)), ((4, 8), (0, 8)), ((6, 7), (2, 5))])
def test_boschloo_sums_all_tables_that_are_as_extreme(a, b):
  """Twice the largest probability, over all common shares, of tables whose one-sided Fisher p is as small."""

  def tail(sign):
    fisher = np.array(
      [
        [stats.fisher_exact([[i, j], [a[1] - i, b[1] - j]], sign).pvalue for j in range(b[1] + 1)]
        for i in range(a[1] + 1)
      ]
    )
    extreme = fisher <= fisher[a[0], b[0]] * (1 + 1e-9)
    return max(
      (
        stats.binom.pmf(np.arange(a[1] + 1), a[1], q)[:, None] * stats.binom.pmf(np.arange(b[1] + 1), b[1], q)
      )[extreme].sum()
      for q in np.linspace(0, 1, 2001)
    )

  assert boschloo_p(Share(*a), Share(*b)) == pytest.approx(
    min(1, 2 * min(tail('less'), tail('greater'))), abs=2e-4
  )


def test_shares_that_are_alike_in_all_runs_differ_by_nothing():
  assert boschloo_p(Share(0, 4), Share(0, 9)) == boschloo_p(Share(4, 4), Share(9, 9)) == 1.0


def test_shares_are_corrected_for_all_arms():
  shares = dict(base=Share(8, 8), none=Share(0, 8), half=Share(4, 8), alike=Share(8, 8))
  found = compare_shares(shares, dict.fromkeys(shares, 'base'))
  assert (
    found['none'] == pytest.approx(3 * boschloo_p(shares['none'], shares['base'])) and found['none'] < 0.001
  )
  assert found['half'] == pytest.approx(2 * boschloo_p(shares['half'], shares['base']))
  assert found['half'] > 0.05
  assert found['alike'] == 1.0 and 'base' not in found


@pytest.mark.parametrize('a, b, tests', [((3, 5), (5, 5), 5), ((4, 8), (0, 8), 3)])
def test_the_needed_seeds_decide_four_times_in_five(a, b, tests):
  """By draws; with one seed less they do not, and the p of tables are those of scipy."""
  a, b = Share(*a), Share(*b)
  n = seeds_to_decide(a, b, tests, 50)
  draw = np.random.default_rng(0)

  def power(n):
    pairs = draw.binomial(n, [a.value, b.value], (2000, 2))
    return np.mean([tests * boschloo_p(Share(int(i), n), Share(int(j), n)) <= 0.05 for i, j in pairs])

  assert power(n) > 0.8 - 0.03 and power(n - 1) < 0.8 + 0.03
  assert seeds_to_decide(a, b, tests, n - 1) is None


def test_shares_that_differ_little_or_not_are_not_decided():
  assert seeds_to_decide(Share(1, 8), Share(0, 8), 3, 20) is None
  assert seeds_to_decide(Share(4, 8), Share(2, 4), 3, 20) is None


def test_holm_by_hand():
  # Sorted 0.005·4, 0.01·3, 0.03·2, 0.04·1, and never below the one before.
  assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
  assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([0.02]) == [0.02] and holm([]) == []
