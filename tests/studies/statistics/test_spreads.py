"""Arms that vary otherwise are found, and equal ones seldom are."""

import numpy as np
import pytest
from scipy import stats

from tfm.studies.statistics.spreads import (
  brown_forsythe_p,
  compare_spreads,
  find_noisy_arms,
  is_far_noisier,
  variance_ratio,
)
from tfm.studies.statistics.summary import Spread


def draw_arms(arms, seeds, deviation, generator):
  """Arms far apart, of which the second varies `deviation` times as much; seeds have more in common."""
  table = generator.normal(size=(arms, seeds))
  table[1] *= deviation
  table += 5 * generator.normal(size=seeds) + 10 * np.arange(arms)[:, None]
  return {arm: dict(enumerate(row)) for arm, row in enumerate(table)}


@pytest.mark.slow
@pytest.mark.parametrize('seeds, power', [(2, 0.4), (3, 0.73), (5, 0.87), (8, 0.94)])
def test_a_noisy_arm_is_found_and_equal_ones_are_not(seeds, power):
  draw = np.random.default_rng(seeds)
  found = [find_noisy_arms(draw_arms(6, seeds, 7, draw)) for _ in range(200)]
  assert np.mean([1 in noisy for noisy in found]) > power
  alarms = [bool(find_noisy_arms(draw_arms(6, seeds, 1, draw))) for _ in range(200)]
  assert np.mean(alarms) < 0.1


def test_several_noisy_arms_do_not_hide_each_other():
  """One seed of each of three arms collapses: each of them alone is beside two that vary as much."""
  draw = np.random.default_rng(0)
  arms = draw_arms(12, 5, 1, draw)
  for arm, seed in [(1, 1), (4, 1), (7, 3)]:
    arms[arm][seed] += 60
  assert not is_far_noisier(*compare_spreads([1], arms), 12)
  assert {*find_noisy_arms(arms)} == {1, 4, 7}


@pytest.mark.slow
def test_twelve_equal_arms_are_seldom_noisy():
  draw = np.random.default_rng(0)
  assert np.mean([bool(find_noisy_arms(draw_arms(12, 3, 1, draw))) for _ in range(200)]) < 0.1


@pytest.mark.parametrize('arms', [3, 6])
def test_the_ratio_of_spreads_is_f_distributed(arms):
  """Of arms that vary alike, whatever seeds do to them: with n - 1 and (k - 2) (n - 1) degrees of freedom."""
  draw, ratios = np.random.default_rng(arms), []
  for _ in range(300):
    spread, others = compare_spreads([0], draw_arms(arms, 4, 1, draw))
    assert (spread.df, others.df) == (3, 3 * (arms - 2))
    ratios.append(variance_ratio(spread, others))
  assert stats.kstest(ratios, stats.f(3, 3 * (arms - 2)).cdf).pvalue > 1e-3


def test_brown_forsythe_by_hand():
  """Distances from the medians 1, 0, 1, 2 and 2, 0, 2, 4: one-way analysis of variance of them."""
  a, b = [1.0, 2.0, 3.0, 4.0, 0.0], [-2.0, 0.0, 2.0, 4.0, -4.0]
  distances = np.abs([a - np.median(a), b - np.median(b)])
  between = 5 * ((distances.mean(1) - distances.mean()) ** 2).sum()
  inside = ((distances - distances.mean(1, keepdims=True)) ** 2).sum() / 8
  assert brown_forsythe_p([a, b]) == pytest.approx(stats.f.sf(between / inside, 1, 8))
  assert brown_forsythe_p([[0.0, 1.0], [0.0, 100.0]]) == 1.0  # two values are as far from their median
  assert brown_forsythe_p([[1.0] * 3, [2.0] * 3]) == 1.0


def test_three_times_as_far_counts_unless_it_is_chance():
  others = Spread(1.0, 10)
  assert not is_far_noisier(Spread(2.9, 50), others, 6) and is_far_noisier(Spread(5.0, 2), others, 6)
  # Of two seeds a factor of four is no surprise.
  assert not is_far_noisier(Spread(4.0, 1), Spread(1.0, 5), 6) and is_far_noisier(Spread(40.0, 1), others, 6)
  # Beside arms that do not vary at all, such as solved tasks, one that does is noisy.
  assert is_far_noisier(Spread(0.1, 1), Spread(0.0, 2), 3)
  solved = {seed: 1.0 for seed in range(3)}
  assert find_noisy_arms({'a': solved, 'b': solved, 'c': {0: 0.3, 1: 0.9, 2: 0.5}}) == ['c']


def test_arms_that_all_differ_leave_none():
  """With seeds of their own."""
  noise = [-2.0, -1.0, 0.0, 1.0, 2.5, 0.3, -0.4, 1.4]
  arms = {
    scale: {(scale, seed): scale * value for seed, value in enumerate(noise)} for scale in (1.0, 30.0, 900.0)
  }
  assert find_noisy_arms(arms) == [900.0, 30.0, 1.0]
  assert find_noisy_arms({'alone': {0: 1.0, 1: 2.0}, 'other': {0: 3.0}}) == []
