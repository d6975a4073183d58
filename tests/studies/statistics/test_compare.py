"""What is higher, lower, the same or undecided; and which test says so."""

import numpy as np
import pytest
from scipy import stats

from tfm.studies.statistics.compare import compare_arms


def arms(seeds, generator=3, **shifts):
  """Arms of some seeds at these shifts from a base: seeds have 1 in common, and 0.01 is of each run."""
  draw = np.random.default_rng(generator)
  common = draw.normal(0, 1, seeds)
  return {
    name: dict(enumerate(common + draw.normal(0, 0.01, seeds) + shift))
    for name, shift in (dict(base=0.0) | shifts).items()
  }


def to_base(values):
  return dict.fromkeys(values, 'base')


def test_findings():
  """Far below the spread of seeds, which all arms share."""
  values = arms(4, above=0.1, below=-0.1, alike=0.0)
  found = compare_arms(values, to_base(values), 0.04)
  assert {arm: each.finding for arm, each in found.comparisons.items()} == dict(
    above='higher', below='lower', alike='same'
  )
  assert found.blocked and found.floor.df == 9 and 0.005 < found.floor.deviation < 0.02
  assert found.within.deviation > 0.3 and (found.arms, found.count, found.noisy) == (4, 3, ())
  above = found.comparisons['above']
  assert above.difference == pytest.approx(0.1, abs=0.02) and above.p < 0.001
  assert above.interval[0] < above.difference < above.interval[1]
  without = compare_arms(values, to_base(values))
  assert (
    without.comparisons['alike'].finding == 'undecided' and without.comparisons['alike'].reason[:4] == 'p = '
  )


def test_a_difference_that_does_not_matter_is_the_same_even_where_it_is_shown():
  values = arms(8, above=0.05)
  found = compare_arms(values, to_base(values), 0.1).comparisons['above']
  assert found.p < 0.05 and found.finding == 'same'
  assert compare_arms(values, to_base(values), 0.055).comparisons['above'].finding == 'higher'


def test_shares_of_the_error_are_bonferronis():
  values = arms(4, one=0.02, two=0.0)
  alone, third = (compare_arms(values, to_base(values), families=n).comparisons['one'] for n in (1, 3))
  assert third.p == pytest.approx(3 * alone.p, rel=1e-3) and third.interval[0] < alone.interval[0]


def test_two_arms_are_paired():
  """With common seeds it is the paired t test, which does not ask that both vary alike."""
  values = {'base': {0: 1.0, 1: 1.1, 2: 0.9, 3: 1.0}, 'wild': {0: 9.0, 1: 3.0, 2: 5.0, 3: 14.0}}
  found = compare_arms(values, to_base(values))
  expected = stats.ttest_rel([*values['wild'].values()], [*values['base'].values()])
  assert found.comparisons['wild'].p == pytest.approx(expected.pvalue) and not found.noisy
  assert found.comparisons['wild'].interval == pytest.approx(tuple(expected.confidence_interval(0.95)))


@pytest.mark.parametrize('seeds, finding', [(4, 'undecided'), (6, 'higher')])
def test_a_noisy_arm_is_tested_apart(seeds, finding):
  """By Welch's test, with its share of the error; and the others keep theirs."""
  values = arms(seeds, one=0.1, two=0.0)
  # It varies ten times as much as a run, which is little beside what seeds have in common.
  values['wild'] = {seed: value + 60 + 0.1 * (-1) ** seed for seed, value in values['base'].items()}
  found = compare_arms(values, to_base(values))
  assert found.noisy == ('wild',) and found.comparisons['wild'].finding == finding
  assert found.comparisons['one'].finding == 'higher'
  without = compare_arms(
    {arm: of for arm, of in values.items() if arm != 'wild'}, dict.fromkeys(('base', 'one', 'two'), 'base')
  )
  assert found.floor == without.floor
  assert found.comparisons['one'].p == pytest.approx(without.comparisons['one'].p * 3 / 2)
  if seeds == 4:
    assert (
      'spreads differ; 5 seeds' in found.comparisons['wild'].reason and found.comparisons['wild'].p is None
    )
  else:
    expected = stats.ttest_ind([*values['wild'].values()], [*values['base'].values()], equal_var=False)
    assert found.comparisons['wild'].p == pytest.approx(expected.pvalue * 3)
    interval = expected.confidence_interval(1 - 0.05 / 3)
    assert found.comparisons['wild'].interval == pytest.approx(tuple(interval))


def test_a_noisy_base_is_compared_with_all_by_welch():
  values = {'base': dict(enumerate([0.0, 50.0, -40.0, 9.0, 30.0]))} | {
    name: dict(enumerate(shift + np.array([0.1, -0.3, 0.2, 0.4, 0.0])))
    for name, shift in (('a', 300.0), ('b', 0.0))
  }
  found = compare_arms(values, to_base(values))
  assert found.noisy[0] == 'base' and found.comparisons['a'].finding == 'higher'
  assert found.comparisons['b'].finding == 'undecided'


def test_lost_seeds_and_lone_runs():
  values = arms(4, one=0.1, two=0.1)
  del values['one'][1], values['one'][2], values['one'][3], values['two'][0]
  found = compare_arms(values, to_base(values))
  assert {each.finding for each in found.comparisons.values()} == {'higher'}
  alone = compare_arms({'base': {0: 1.0}, 'one': {0: 2.0}}, dict(base='base', one='base'))
  assert alone.floor is None and alone.comparisons['one'].p is None
  assert alone.comparisons['one'].difference == 1.0 and 'one seed' in alone.comparisons['one'].reason


def test_values_that_do_not_vary_are_not_tested():
  values = {arm: {0: size, 1: size} for arm, size in (('base', 1.0), ('one', 2.0))}
  found = compare_arms(values, to_base(values)).comparisons['one']
  assert (found.finding, found.p, found.difference) == ('undecided', None, pytest.approx(1.0))
  assert found.reason == 'the values do not vary over the seeds'


def test_each_arm_is_compared_with_its_base():
  values = arms(5, generator=1, more=0.5, far=9.0, further=9.5)
  bases = dict(base='base', more='base', far='far', further='far')
  found = compare_arms(values, bases)
  assert {arm: (each.finding, round(each.difference, 1)) for arm, each in found.comparisons.items()} == dict(
    more=('higher', 0.5), further=('higher', 0.5)
  )
  with pytest.raises(ValueError, match=r"base='c' is not an arm; the arms are a, b$"):
    compare_arms({'a': {0: 1.0}, 'b': {0: 1.0}}, {'a': 'c'})
