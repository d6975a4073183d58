"""Intervals, tests and corrections, against all resamples, all flips, and sums done by hand."""

import itertools

import numpy as np
import pytest

from tfm.studies import statistics


VALUES = [2.31, 2.29, 2.36, 2.30, 2.33]


@pytest.mark.parametrize('n', (2, 3))
def test_an_interval_of_two_or_three_is_their_range(n):
  values = VALUES[:n]
  assert statistics.bootstrap_interval(values) == pytest.approx((min(values), max(values)))


@pytest.mark.parametrize('n', (4, 5))
def test_an_interval_is_that_of_all_resamples(n):
  """The quantiles of all nⁿ means, to one step of them, as 9999 are drawn."""
  means = np.sort(np.mean([*itertools.product(VALUES[:n], repeat=n)], axis=1))
  found = statistics.bootstrap_interval(VALUES[:n])
  for x, share in zip(found, (0.025, 0.975)):
    least, most = np.quantile(means, [share - 0.006, share + 0.006])
    assert least <= x + 1e-12 and x <= most + 1e-12
  assert min(VALUES[:n]) < found[0] < np.mean(VALUES[:n]) < found[1] < max(VALUES[:n])


def test_an_interval_moves_and_stretches_with_its_values():
  low, high = statistics.bootstrap_interval(VALUES)
  assert statistics.bootstrap_interval([3 * v - 1 for v in VALUES]) == pytest.approx(
    (3 * low - 1, 3 * high - 1)
  )
  assert statistics.bootstrap_interval(VALUES) == (low, high)
  inner = statistics.bootstrap_interval(VALUES, 0.5)
  assert low < inner[0] < inner[1] < high
  assert statistics.bootstrap_interval([1.0, 1.0, 1.0]) == (1.0, 1.0)
  assert statistics.bootstrap_interval([1.0]) is None


@pytest.mark.slow
def test_interval_coverage():
  """Of normals: 1 - 2 / 2ⁿ while it is the range, below LEVEL for few, near it for many; never above
  `coverage`.
  """
  draw = np.random.default_rng(1)
  shares = {}
  for n in (2, 3, 5, 30):
    found = [statistics.bootstrap_interval(draw.normal(size=n)) for _ in range(1500)]
    shares[n] = np.mean([low <= 0 <= high for low, high in found])
    # Three standard deviations of a share of 1500.
    assert shares[n] <= statistics.coverage(n) + 3 * (0.25 / 1500) ** 0.5
  assert shares[2] == pytest.approx(0.5, abs=0.04) and shares[3] == pytest.approx(0.75, abs=0.034)
  assert 0.75 < shares[5] < 0.9 and 0.91 < shares[30] < 0.97


@pytest.mark.parametrize('n', (1, 2, 3, 5, 8))
def test_permutation_counts_all_flips(n):
  differences = np.random.default_rng(n).normal(0.5, 1, n)
  means = np.array([np.mean(differences * flips) for flips in itertools.product((1, -1), repeat=n)])
  expected = np.mean(np.abs(means) >= abs(differences.mean()) - 1e-12)
  assert statistics.permutation_p(differences) == pytest.approx(expected)
  assert statistics.permutation_p(-7 * differences) == pytest.approx(expected)


@pytest.mark.parametrize('n', (1, 2, 3, 6, 10))
def test_the_smallest_p(n):
  """It is reached where all differences point one way, and is 2 / 2ⁿ."""
  assert (
    statistics.permutation_p(np.arange(1.0, n + 1))
    == pytest.approx(statistics.smallest_p(n))
    == pytest.approx(2 / 2**n)
  )


def test_no_difference_is_p_1_and_many_pairs_are_drawn():
  assert statistics.permutation_p([0.0, 0.0, 0.0]) == 1.0
  n = statistics.EXACT + 4
  drawn = statistics.permutation_p(np.ones(n))
  assert statistics.smallest_p(n) <= drawn < 1e-3 and drawn == statistics.permutation_p(np.ones(n))
  assert statistics.permutation_p([1.0, -1.0] * (n // 2)) == pytest.approx(1.0)


def test_holm_by_hand():
  # Sorted 0.005·4, 0.01·3, 0.03·2, 0.04·1, and never below the one before.
  assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
  assert statistics.holm([0.5, 0.9]) == [1.0, 1.0]
  assert statistics.holm([0.02]) == [0.02] and statistics.holm([]) == []


@pytest.mark.parametrize('arms', (1, 2, 3, 11))
def test_needed_is_the_least_number_of_seeds(arms):
  n = statistics.seeds_needed(arms)
  least = [min(statistics.holm([statistics.smallest_p(seeds)] * arms)) for seeds in (n - 1, n)]
  assert least[0] > statistics.SIGNIFICANT >= least[1]


def test_summary():
  found = statistics.summarize([1.0, 2.0, 6.0])
  assert (found.n, found.mean, found.minimum, found.maximum) == (3, 3.0, 1.0, 6.0)
  assert found.deviation == pytest.approx(7**0.5) and found.interval == (1.0, 6.0)
  one = statistics.summarize([4.0])
  assert (one.mean, one.deviation, one.interval) == (4.0, None, None)
  with pytest.raises(ValueError, match='no value'):
    statistics.summarize([])


def arms(n, **shifts):
  """Arms of n seeds at these shifts from a base with noise that seeds share."""
  noise = np.random.default_rng(3).normal(0, 1, n)
  return {'base': dict(enumerate(noise))} | {
    name: dict(enumerate(noise + shift)) for name, shift in shifts.items()
  }


def test_verdicts():
  """Pairing finds differences far below the spread of seeds, in the direction that is better."""
  values = arms(8, ahead=-0.1, behind=0.1) | {'alike': dict(enumerate(arms(8)['base'].values()))}
  values['alike'] = {seed: v + (-1) ** seed * 0.01 for seed, v in values['alike'].items()}
  found = statistics.compare_arms(values, dict.fromkeys(values, 'base'), lower_is_better=True)
  assert [found[a].verdict for a in ('ahead', 'behind', 'alike')] == [
    'better',
    'worse',
    'no difference shown',
  ]
  assert found['ahead'].difference.mean == pytest.approx(-0.1) and found['ahead'].p == pytest.approx(2 / 2**8)
  assert found['ahead'].corrected == pytest.approx(3 * 2 / 2**8) and 'base' not in found
  assert found['alike'].reason.startswith('p = ') and 'seeds' not in found['alike'].reason
  other = statistics.compare_arms(values, dict.fromkeys(values, 'base'), lower_is_better=False)
  assert [other[a].verdict for a in ('ahead', 'behind')] == ['worse', 'better']


@pytest.mark.parametrize(
  'n, count, shown', [(5, 1, False), (6, 1, True), (6, 2, False), (7, 2, True), (7, 3, True), (7, 4, False)]
)
def test_too_few_seeds_are_reported(n, count, shown):
  """However large the difference: 2 / 2ⁿ times the arms compared must be at most 0.05."""
  values = arms(n, **{f'arm{i}': -1000.0 for i in range(count)})
  found = statistics.compare_arms(values, dict.fromkeys(values, 'base'), True)
  assert {c.verdict for c in found.values()} == {'better' if shown else 'no difference shown'}
  for comparison in found.values():
    assert ('too few seeds' in comparison.reason) == (not shown)
    assert (
      comparison.corrected == pytest.approx(comparison.reachable) == pytest.approx(min(1, count * 2 / 2**n))
    )


def test_only_seeds_of_both_are_paired():
  values = {'base': {0: 1.0, 1: 2.0, 2: 3.0}, 'some': {1: 2.5, 2: 3.5, 7: 99.0}, 'none': {7: 0.0}}
  found = statistics.compare_arms(values, dict.fromkeys(values, 'base'), True)
  assert found['some'].difference.n == 2 and found['some'].difference.mean == 0.5 and found['some'].p == 0.5
  assert found['none'].verdict == 'not compared' and found['none'].difference is None
  # It is no comparison, so that it corrects none.
  assert found['some'].corrected == 0.5


def test_each_arm_is_compared_with_its_base():
  values = arms(8, more=0.5, less=-0.5) | {
    'far': arms(8, far=9.0)['far'],
    'further': arms(8, further=9.5)['further'],
  }
  found = statistics.compare_arms(
    values, dict(base='base', more='base', less='base', far='far', further='far'), True
  )
  assert {arm: (c.verdict, round(c.difference.mean, 6)) for arm, c in found.items()} == dict(
    more=('worse', 0.5), less=('better', -0.5), further=('worse', 0.5)
  )
  assert found['further'].corrected == pytest.approx(
    3 * 2 / 2**8
  )  # all comparisons of the study are corrected for


def test_corrected_is_never_below_what_is_reachable():
  draw = np.random.default_rng(5)
  for _ in range(4):
    values = {name: {seed: draw.normal() for seed in range(draw.integers(1, 7))} for name in 'abcde'}
    for c in statistics.compare_arms(values, dict.fromkeys(values, 'a'), True).values():
      assert c.p <= c.corrected + 1e-12 and c.reachable <= c.corrected + 1e-12


def test_an_unknown_base_is_rejected():
  with pytest.raises(ValueError, match=r"base='c' is not an arm; the arms are a, b$"):
    statistics.compare_arms({'a': {0: 1.0}, 'b': {0: 1.0}}, {'a': 'c'}, True)


@pytest.mark.parametrize(
  'p, text', [(1.0, 'p = 1.00'), (0.1234, 'p = 0.12'), (0.0312, 'p = 0.031'), (0.0004, 'p < 0.001')]
)
def test_p_values_are_never_zero(p, text):
  assert statistics.format_p(p) == text
