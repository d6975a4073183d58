"""Aggregates over tasks: by hand, against rliable, and intervals that move with the runs."""

import numpy as np
import pytest

from tfm.studies.statistics.suites import aggregate, interquartile_mean, probability_of_improvement


def make_scores(seed, tasks=3, runs=5, shift=0.0):
  draw = np.random.default_rng(seed)
  return [draw.normal(task + shift, 1, runs) for task in range(tasks)]


def test_interquartile_mean_is_that_of_the_middle_half():
  assert interquartile_mean([np.array([0.0, 1, 100, 2]), np.array([-50.0, 3, 4, 5])]) == (1 + 2 + 3 + 4) / 4


def test_probability_of_improvement_by_hand():
  """In the first task 3 of 4 pairs are won, in the second one is lost and one equal."""
  own, base = [np.array([1.0, 3.0]), np.array([0.0, 1.0])], [np.array([0.0, 2.0]), np.array([1.0])]
  assert probability_of_improvement(own, base) == pytest.approx((3 / 4 + 1 / 4) / 2)


def test_intervals():
  """They hold the value, and of equal arms one half; of an arm that always wins there is nothing else."""
  own, base = make_scores(0, runs=20), make_scores(1, runs=20)
  found = aggregate(probability_of_improvement, own, base)
  assert found.low < 0.5 < found.high and found.low < found.value < found.high
  sure = aggregate(probability_of_improvement, [runs + 100 for runs in own], base)
  assert sure.low == sure.value == sure.high == 1
  mean, shifted = (aggregate(interquartile_mean, [runs + x for runs in own]) for x in (0, 1))
  assert shifted.low - mean.low == pytest.approx(1) == pytest.approx(shifted.high - mean.high)


def test_runs_of_infinite_loss_are_worse_than_all_others_and_alike():
  """Of 4 pairs 2 are lost to finite losses, 1 is won and 1, of two infinite ones, is equal."""
  own, base = [np.array([-np.inf, -np.inf, -1.0])], [np.array([-2.0, -np.inf])]
  assert probability_of_improvement(own, base) == pytest.approx((0 + 0.5 + 0 + 0.5 + 1 + 1) / 6)
  # One of eight is outside the middle half, three are not.
  few, many = ([np.array([np.inf] * k + [1.0] * (8 - k))] for k in (1, 3))
  assert interquartile_mean(few) == 1 and interquartile_mean(many) == np.inf
  found = aggregate(interquartile_mean, many)
  assert (found.low, found.high) == (1, np.inf)


@pytest.mark.oracle
def test_equals_rliable():
  metrics = pytest.importorskip('rliable.metrics')
  own, base = make_scores(2, runs=8), make_scores(3, runs=8, shift=0.3)
  as_matrix = np.stack(own, axis=1), np.stack(base, axis=1)
  assert interquartile_mean(own) == pytest.approx(metrics.aggregate_iqm(as_matrix[0]))
  expected = metrics.probability_of_improvement(*as_matrix)
  assert probability_of_improvement(own, base) == pytest.approx(expected)
