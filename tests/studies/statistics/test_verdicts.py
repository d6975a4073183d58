"""Verdicts: the direction of a metric, seeds that would decide, solved tasks, and runs that diverged."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from tfm.studies.statistics import power
from tfm.studies.statistics.shares import boschloo_p
from tfm.studies.statistics.verdicts import Criterion, judge_arms


LOWER = Criterion(lower_is_better=True)


def arms(seeds, **shifts):
  draw = np.random.default_rng(1)
  return {
    name: dict(enumerate(2 + shift + draw.normal(0, 0.01, seeds)))
    for name, shift in (dict(base=0.0) | shifts).items()
  }


def judge(values, criterion=LOWER, **diverged):
  return judge_arms(values, diverged, dict.fromkeys(values, 'base'), criterion)


def words(findings):
  return {arm: verdict.word for arm, verdict in findings.verdicts.items()}


def test_the_direction_of_the_metric():
  values = arms(4, ahead=-0.1, behind=0.1, alike=0.0)
  assert words(judge(values)) == dict(ahead='better', behind='worse', alike='undecided')
  higher = Criterion(lower_is_better=False, margin=0.05)
  assert words(judge(values, higher)) == dict(ahead='worse', behind='better', alike='same')


def test_undecided_says_how_many_seeds_would_decide():
  """With so many seeds the power is 0.8, and with one less it is not."""
  values = arms(3, near=0.01, far=0.5)
  found = judge(values)
  near, floor = found.verdicts['near'], found.analysis.floor
  effect = near.comparison.difference / floor.deviation

  def power_of(seeds):
    return power.power_to_differ(effect, seeds, 2 * (seeds - 1), 2)

  assert near.word == 'undecided' and near.seeds > 3
  assert power_of(near.seeds) >= power.POWER > power_of(near.seeds - 1)
  # A margin is decided first, and too small a difference never.
  assert power.seeds_to_decide(0.0, found.analysis, 3 * floor.deviation) < 12
  assert power.seeds_to_decide(0.0, found.analysis, None) is None


@pytest.mark.parametrize('shift', [2.0, 4.0])
def test_undecided_by_welchs_test_says_how_many_seeds_would_decide(shift):
  """More than there are, and about four of five such experiments decide (another base varies alike)."""
  spread = dict(base=1.0, quiet=1.0, calm=1.0, wild=5.0)
  standard = (np.arange(5) - 2) / np.std(np.arange(5), ddof=1)
  values = {name: dict(enumerate(sd * standard + shift * (name == 'wild'))) for name, sd in spread.items()}
  findings = judge_arms(values, {}, dict.fromkeys(values, 'base'), LOWER)
  assert findings.analysis.noisy == ('wild',)
  verdict = findings.verdicts['wild']
  assert verdict.word == 'undecided'
  if shift == 2:
    assert verdict.seeds is None
    return
  assert 5 < verdict.seeds < 50
  draw = np.random.default_rng(0)
  base, wild = (draw.normal(mean, sd, (4000, verdict.seeds)) for mean, sd in ((0, 1), (shift, 5)))
  ps = stats.ttest_ind(wild, base, axis=1, equal_var=False).pvalue
  assert np.mean(ps < 0.05 / 3) == pytest.approx(0.8, abs=0.06)


def test_one_seed_decides_nothing():
  found = judge(arms(1, other=1.0))
  assert words(found) == dict(other='undecided') and found.verdicts['other'].seeds is None
  assert 'one seed' in found.verdicts['other'].reason


def test_solved_tasks_are_counted():
  solved = Criterion(lower_is_better=False, solved_at=0.9)
  values = {
    'base': dict.fromkeys(range(8), 1.0),
    'none': dict.fromkeys(range(8), 0.1),
    'most': {seed: 0.95 if seed % 3 else 0.2 for seed in range(8)},
  }
  found = judge(values, solved)
  assert words(found) == dict(none='worse', most='undecided')
  assert {arm: (share.k, share.n) for arm, share in found.outcomes.items()} == dict(
    base=(8, 8), none=(0, 8), most=(5, 8)
  )
  assert found.verdicts['none'].p == pytest.approx(
    2 * boschloo_p(found.outcomes['none'], found.outcomes['base'])
  )
  assert found.verdicts['most'].seeds > 8
  # A run that diverged has not solved it.
  found = judge(values | {'most': {0: 1.0}}, solved, most=7)
  assert (found.outcomes['most'].k, found.outcomes['most'].n) == (1, 8) and words(found)['most'] == 'worse'
  # A loss is solved from below.
  assert Criterion(True, solved_at=0.1).is_solved(0.05) and not Criterion(True, solved_at=0.1).is_solved(0.2)


def test_divergence_is_the_worst_outcome():
  """However good the runs that finished: never better, never the same; and worse where enough diverged."""
  values = arms(8, lucky=-1.0, alike=0.0)
  values['lucky'] = {seed: values['lucky'][seed] for seed in (0, 1)}
  values['alike'] = {seed: values['alike'][seed] for seed in range(7)}
  found = judge(values, dataclasses.replace(LOWER, margin=0.5), lucky=6, alike=1)
  assert words(found) == dict(lucky='worse', alike='undecided')
  assert found.verdicts['lucky'].reason == '6 of 8 diverged, of base 0 of 8'
  # Two comparisons, and two tests of each.
  assert found.verdicts['lucky'].p == pytest.approx(
    4 * boschloo_p(found.outcomes['lucky'], found.outcomes['base'])
  )


@pytest.mark.slow
@pytest.mark.parametrize('seeds, share', [(5, 0.4), (8, 0.3), (8, 0.5)])
def test_two_ways_to_be_worse_keep_the_level(seeds, share):
  """Of 300 studies of three equal arms of which as many runs diverge at most one in twenty shows any."""
  draw, shown = np.random.default_rng(seeds), []
  for _ in range(300):
    values = {
      arm: {seed: draw.normal() for seed in range(seeds) if draw.random() > share}
      for arm in ('base', 'other', 'third')
    }
    diverged = {arm: seeds - len(of_arm) for arm, of_arm in values.items()}
    shown.append(bool({'better', 'worse'} & {*words(judge(values, **diverged)).values()}))
  assert np.mean(shown) <= 0.06  # two standard errors of 300 draws are 0.025


def test_what_finished_decides_in_the_direction_of_divergence_only():
  values = arms(4, behind=0.5, ahead=-0.5)
  for arm in ('behind', 'ahead'):
    del values[arm][3]
  found = judge(values, behind=1, ahead=1)
  assert words(found) == dict(behind='worse', ahead='undecided')
  assert found.verdicts['behind'].reason == 'by what finished; 1 of 4 diverged, of base 0 of 4'
  # And if it is the base that diverged, the other way round.
  values = arms(4, behind=0.5, ahead=-0.5)
  del values['base'][3]
  assert words(judge(values, base=1)) == dict(behind='undecided', ahead='better')


def test_arms_of_which_nothing_finished():
  values = arms(8, fine=0.0) | {'burnt': {}, 'lost': {}}
  found = judge(values, burnt=8)
  assert words(found) == dict(fine='undecided', burnt='worse', lost='not compared')
  assert (
    found.verdicts['burnt'].comparison is None and found.verdicts['lost'].reason == 'no finished run of lost'
  )
  assert words(judge(values | {'base': {}})) == dict.fromkeys(('fine', 'burnt', 'lost'), 'not compared')
