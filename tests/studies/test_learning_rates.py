"""The best learning rate: vertices of parabolas, their intervals under noise, and rates dropped early."""

import math

import numpy as np
import pytest

from tfm.studies.learning_rates import (
  find_dropped_neighbours,
  find_interval,
  find_optimum,
  list_rates_tried,
  rank_correlation,
  select_survivors,
)
from tfm.studies.statistics.summary import Spread


GRID = (1e-3, 2e-3, 4e-3, 8e-3)


def parabola(vertex, curvature=0.1, rates=GRID):
  return {rate: 2 + curvature * math.log(rate / vertex) ** 2 for rate in rates}


@pytest.mark.parametrize('vertex', [1.7e-3, 2e-3, 3.3e-3])
@pytest.mark.parametrize('sign', [1, -1])
def test_a_planted_vertex_is_found(vertex, sign):
  reached = {rate: sign * value for rate, value in parabola(vertex).items()}
  found = find_optimum(reached, GRID, lower_is_better=sign > 0)
  assert found.rate == pytest.approx(vertex, rel=1e-2) and found.value == pytest.approx(sign * 2)
  assert found.best == (max if sign < 0 else min)(reached, key=reached.get) and not found.is_at_edge


def test_only_the_best_and_its_neighbours_count():
  """Far from the optimum a loss is no parabola; and rates need not be evenly spaced."""
  reached = parabola(3e-3, rates=(1e-3, 2e-3, 5e-3)) | {1e-2: 9.0, 1e-4: 3.0}
  assert find_optimum(reached, [*reached], True).rate == pytest.approx(3e-3, rel=1e-2)


def test_beside_a_cliff_it_is_the_best_rate():
  """A parabola through a rate at which training fails promises more at 0.003 than any run reached."""
  reached = {2e-3: 1.80, 4e-3: 1.74, 8e-3: 3.1}
  found = find_optimum(reached, GRID, True)
  assert (found.rate, found.value, found.is_at_edge) == (4e-3, 1.74, False)
  assert find_interval(reached, GRID, found.best, Spread(0.01, 5)) is None
  assert find_optimum(reached | {8e-3: 1.99}, GRID, True).rate < 4e-3  # 0.25, a seventh of 1.74
  assert find_optimum(reached | {2e-3: 2.04}, GRID, True).rate < 4e-3  # 1.36 beside 0.3


def test_a_rate_that_a_rung_dropped_is_known_as_next_to_the_best():
  """0.001 is dropped beside the best of those in full, 0.002; 0.016, beside 0.008, diverged in the rung."""
  rung = dict(reached={'0.001': 3.0, '0.002': 2.9, '0.004': 2.5, '0.008': 2.6}, diverged={'0.016': ''})
  outcome = dict(reached={'0.002': 2.0, '0.004': 2.1, '0.008': 2.2}, diverged={}, rungs={'25': rung})
  assert find_dropped_neighbours(outcome, 2e-3) == [1e-3]
  assert find_dropped_neighbours(outcome, 4e-3) == find_dropped_neighbours(outcome, 8e-3) == []
  rung['diverged']['0.0015'] = ''  # not the neighbour of 0.002 that a rung dropped
  assert find_dropped_neighbours(outcome, 2e-3) == []
  outcome['reached']['0.001'] = 1.9
  assert find_dropped_neighbours(outcome, 1e-3) == find_dropped_neighbours(outcome, 2e-3) == []


@pytest.mark.parametrize('vertex, best', [(5e-4, 1e-3), (2e-2, 8e-3)])
def test_an_optimum_at_an_end_is_the_end(vertex, best):
  found = find_optimum(parabola(vertex), GRID, True)
  assert (found.rate, found.best, found.is_at_edge) == (best, best, True)


def test_beside_a_rate_that_diverged_or_was_dropped_it_is_the_best_rate():
  reached = parabola(3.5e-3, rates=GRID[:3])
  found = find_optimum(reached, GRID, True)
  assert (found.rate, found.is_at_edge) == (4e-3, False)
  assert find_interval(reached, GRID, found.best, Spread(0.01, 5)) is None
  assert find_optimum({1e-3: 2.0}, (1e-3,), True) == find_optimum({1e-3: 2.0}, (1e-3,), False)
  assert not find_optimum({1e-3: 2.0}, (1e-3,), True).is_at_edge  # there is no other


def test_equal_results_have_no_vertex():
  assert find_optimum(dict.fromkeys(GRID, 2.0), GRID, True).rate in GRID


@pytest.mark.parametrize('vertex', [2e-3, 2.6e-3])
def test_intervals_of_the_vertex_hold_as_often_as_they_say(vertex):
  """Of 4,000 draws of three noisy results and of the noise's estimate; those without a bound hold, too."""
  draw, deviation, df = np.random.default_rng(0), 0.004, 8
  truth, held, bounded = parabola(vertex, rates=GRID[:3]), 0, 0
  for _ in range(4000):
    reached = {rate: value + draw.normal(0, deviation) for rate, value in truth.items()}
    noise = Spread(deviation * math.sqrt(draw.chisquare(df) / df), df)
    interval = find_interval(reached, GRID[:3], GRID[1], noise)
    bounded += interval is not None
    held += interval is None or interval[0] <= vertex <= interval[1]
  assert held / 4000 == pytest.approx(0.95, abs=0.015) and bounded > 3900


def test_results_that_differ_too_little_bound_nothing():
  reached = parabola(2e-3, curvature=1e-4, rates=GRID[:3])
  assert find_interval(reached, GRID[:3], 2e-3, Spread(0.01, 8)) is None


def test_the_better_half_survives_and_three_at_least():
  reached = {rate: float(i) for i, rate in enumerate((4e-3, 2e-3, 8e-3, 1e-3, 16e-3, 5e-4, 32e-3))}
  assert select_survivors(dict(reached=reached), True) == [1e-3, 2e-3, 4e-3, 8e-3]
  assert select_survivors(dict(reached=reached), False) == [5e-4, 1e-3, 16e-3, 32e-3]
  assert select_survivors(dict(reached=parabola(4e-3)), True) == [2e-3, 4e-3, 8e-3]
  assert select_survivors(dict(reached={1e-3: 1.0, 2e-3: 2.0}), True) == [1e-3, 2e-3]


def test_rates_that_reach_the_goal_survive_before_others():
  """The slowest of four that reach 0.99 is dropped, though it went farthest beyond, and 0.032 with it."""
  reached = {'0.001': 0.999, '0.002': 0.991, '0.004': 0.992, '0.008': 0.993, '0.016': 0.9, '0.032': 0.98}
  steps = {'0.001': 400.0, '0.002': 100.0, '0.004': 200.0, '0.008': 300.0}
  assert select_survivors(dict(reached=reached, steps=steps), False) == [2e-3, 4e-3, 8e-3]
  assert select_survivors(dict(reached=reached, steps={'0.016': 100.0}), False) == [1e-3, 8e-3, 16e-3]


def test_rungs_are_compared_by_the_rates_in_both():
  before = {1e-3: 5.0, 2e-3: 3.0, 4e-3: 4.0, 8e-3: 9.0}
  assert rank_correlation(before, {1e-3: 2.2, 2e-3: 2.0, 4e-3: 2.1}) == pytest.approx(1.0)
  assert rank_correlation(before, {1e-3: 2.0, 2e-3: 2.2, 4e-3: 2.1}) == pytest.approx(-1.0)
  assert rank_correlation(before, {1e-3: 2.0, 2e-3: 2.2}) is None
  assert rank_correlation(before, dict.fromkeys(before, 1.0)) is None  # no order


def test_all_rates_tried_are_listed():
  rungs = {'25': dict(reached={'0.001': 3.0, '0.002': 2.5}, diverged={'0.1': 'nan'})}
  record = dict(rates=dict(reached={'0.002': 2.0}, diverged={'0.01': 'nan'}, rungs=rungs))
  assert list_rates_tried(record) == {'0.001', '0.002', '0.01', '0.1'} and list_rates_tried({}) == set()
