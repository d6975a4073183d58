"""Means and their intervals, against numbers done by hand and by simulation."""

import numpy as np
import pytest
from scipy import stats

from tfm.studies.statistics.summary import Spread, format_p, pool_spreads, summarize


def test_a_summary_by_hand():
  found = summarize([1.0, 2.0, 6.0])
  assert (found.n, found.mean, found.minimum, found.maximum) == (3, 3.0, 1.0, 6.0)
  assert found.deviation == pytest.approx(7**0.5)
  # t of 2 degrees of freedom at 97.5 % is 4.3027 in every table.
  half = 4.302653 * 7**0.5 / 3**0.5
  assert found.interval == pytest.approx((3 - half, 3 + half))
  alone = summarize([4.0])
  assert (alone.mean, alone.deviation, alone.interval) == (4.0, None, None)
  assert summarize([4.0], Spread(2.0, 2)).interval == pytest.approx((4 - 2 * 4.302653, 4 + 2 * 4.302653))
  with pytest.raises(ValueError, match='no value'):
    summarize([])


def test_spreads_are_pooled_by_degrees_of_freedom():
  assert pool_spreads([[1.0, 3.0], [5.0, 5.0, 5.0], [9.0]]) == Spread(pytest.approx((2 / 3) ** 0.5), 3)
  assert pool_spreads([[1.0], [2.0]]) is None


@pytest.mark.parametrize('n', (2, 3, 5, 8))
def test_intervals_of_means_hold_as_often_as_they_say(n):
  draw = np.random.default_rng(n).normal(size=(2000, n))
  held = [low <= 0 <= high for low, high in (summarize(values).interval for values in draw)]
  assert stats.binomtest(sum(held), len(held), 0.95).pvalue > 1e-3


@pytest.mark.parametrize(
  'p, text', [(1.0, 'p = 1.00'), (0.1234, 'p = 0.12'), (0.0312, 'p = 0.031'), (0.0004, 'p < 0.001')]
)
def test_p_values_are_never_zero(p, text):
  assert format_p(p) == text
