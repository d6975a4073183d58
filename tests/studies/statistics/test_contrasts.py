"""Dunnett's test against scipy's, and with seeds as blocks against sums of squares done in numpy."""

import numpy as np
import pytest
from scipy import stats

from tfm.studies.statistics.contrasts import critical_value, exchangeable, fit_contrasts


# Values [arm, seed].
TABLE = np.random.default_rng(0).normal(size=(6, 4)) + np.array([0.0, 0.5, 2.0, 0.0, -1.5, 3.0])[:, None]


def values(table, seeds=lambda arm, seed: seed):
  return {arm: {seeds(arm, seed): value for seed, value in enumerate(row)} for arm, row in enumerate(table)}


def pairs(arms):
  return [(arm, 0) for arm in range(1, arms)]


@pytest.mark.parametrize('sizes', [(4,) * 6, (2, 4, 3, 4, 2, 4)])
def test_without_common_seeds_it_is_scipys(sizes):
  table = [row[:n] for row, n in zip(TABLE, sizes)]
  found = fit_contrasts(values(table, lambda arm, seed: (arm, seed)), pairs(6))
  expected = stats.dunnett(*table[1:], control=table[0], rng=np.random.default_rng(1))
  assert not found.blocked and found.spread.df == sum(sizes) - 6
  np.testing.assert_allclose(found.correct_p(), expected.pvalue, atol=1e-3)
  interval = expected.confidence_interval()
  half = found.critical_value(0.95) * found.errors
  np.testing.assert_allclose(found.differences - half, interval.low, atol=3e-3)
  np.testing.assert_allclose(found.differences + half, interval.high, atol=3e-3)


def test_with_seeds_as_blocks_it_is_the_two_way_analysis():
  """The noise is what remains of rows and columns; p is a share of 400,000 draws of the largest t."""
  shifted = TABLE + 100 * np.arange(4)  # what a seed does to all arms does not matter
  found = fit_contrasts(values(shifted), pairs(6))
  residuals = TABLE - TABLE.mean(1, keepdims=True) - TABLE.mean(0) + TABLE.mean()
  deviation = np.sqrt((residuals**2).sum() / 15)
  assert found.blocked and found.spread.df == 15
  assert found.spread.deviation == pytest.approx(deviation)
  np.testing.assert_allclose(found.differences, TABLE[1:].mean(1) - TABLE[0].mean())
  np.testing.assert_allclose(found.errors, deviation * np.sqrt(2 / 4))
  np.testing.assert_allclose(found.correlation, np.array(exchangeable(5)), atol=1e-12)
  draw = np.random.default_rng(1)
  means, noise = draw.normal(size=(400_000, 6)), np.sqrt(draw.chisquare(15, 400_000) / 15)
  largest = np.abs(means[:, 1:] - means[:, :1]).max(1) / np.sqrt(2) / noise
  t = np.abs(found.differences / found.errors)
  np.testing.assert_allclose(found.correct_p(), [(largest >= x).mean() for x in t], atol=3e-3)
  assert found.critical_value(0.95) == pytest.approx(np.quantile(largest, 0.95), abs=0.02)


def test_lost_seeds_are_estimated_by_the_others():
  """Least squares by hand, and no bias from a seed in which every arm is better."""
  table = values(TABLE + np.array([0.0, 0.0, 0.0, 50.0]))
  del table[2][3], table[0][0]
  found = fit_contrasts(table, pairs(6))
  cells = [(arm, seed, value) for arm, row in table.items() for seed, value in row.items()]
  design = np.array(
    [[arm == a for a in range(6)] + [seed == s for s in (1, 2, 3)] for arm, seed, _ in cells], float
  )
  answer, (squares,), *_ = np.linalg.lstsq(design, np.array([value for *_, value in cells]), rcond=None)
  inverse = np.linalg.inv(design.T @ design)
  assert found.spread.df == 22 - 9 and found.spread.deviation == pytest.approx(np.sqrt(squares / 13))
  for i, arm in enumerate(range(1, 6)):
    select = np.eye(9)[arm] - np.eye(9)[0]
    assert found.differences[i] == pytest.approx(answer[arm] - answer[0])
    assert found.errors[i] == pytest.approx(np.sqrt(squares / 13 * select @ inverse @ select))
  assert abs(found.differences[1] - (TABLE[2].mean() - TABLE[0].mean())) < 2


def test_without_a_second_run_nothing_is_known():
  assert fit_contrasts({'a': {0: 1.0}, 'b': {0: 2.0}}, [('b', 'a')]) is None
  # One arm with two seeds is enough.
  assert fit_contrasts({'a': {0: 1.0, 1: 1.5}, 'b': {0: 2.0}}, [('b', 'a')]).spread.df == 1


@pytest.mark.parametrize(
  'm, df, expected',
  # Dunnett 1964, table II: two-sided, 95 %, equal sizes.
  [(1, 10, 2.23), (2, 10, 2.57), (5, 10, 2.99), (9, 10, 3.24), (5, 20, 2.73), (5, 60, 2.58), (2, 5, 3.03)],
)
def test_critical_values_are_those_of_the_published_table(m, df, expected):
  assert critical_value(exchangeable(m), df, 0.95) == pytest.approx(expected, abs=0.006)
