"""Steps, compute and time to the loss of the base, by hand."""

import pytest

from tests.studies.report.made_up import results
from tests.studies.report.test_caveats import with_curves
from tfm.studies.report.figures import list_plots
from tfm.studies.report.ranking import rank_arms
from tfm.studies.report.targets import list_targets, steps_to


def made_up(**study):
  """rope falls to 2 in 60 steps; alibi, whose steps are twice as dear, passes 2 half-way between 20 and 40;
  slow never does.
  """
  study_results = with_curves(
    results(dict(rope=0.0, alibi=-0.3, slow=0.5), **study),
    dict(rope=[5, 3, 2.5, 2], alibi=[5, 2.4, 1.6, 1.5], slow=[5, 4, 3, 2.5]),
  )
  for arm, flops in zip(study_results['arms'], (1e6, 2e6, 1e6)):
    arm |= dict(tokens=60_000, flops_per_token=flops, tokens_per_second=1000.0)
  return study_results


def test_costs_by_hand():
  study_results = made_up()
  assert dict(list_targets(study_results, rank_arms(study_results))) == {
    'rope': ['2', '60', '60.00 G', '0:01:00'],
    'alibi': ['2', '30', '60.00 G', '0:00:30'],
    'slow': ['2', 'not reached', '–', '–'],
  }


def test_runs_that_diverged_have_no_mean_curve():
  study_results = made_up(diverged=dict(alibi=[1]))
  rows = dict(list_targets(study_results, rank_arms(study_results)))
  assert rows['alibi'] == ['runs diverged', '–', '–', '–'] and rows['slow'][1] == 'not reached'
  study_results = made_up(diverged=dict(rope=[1]))
  assert {cells[0] for _, cells in list_targets(study_results, rank_arms(study_results))} == {'runs diverged'}


def test_unknown_costs_and_other_metrics():
  study_results = made_up()
  for arm in study_results['arms']:
    arm |= dict(tokens=None)
  assert dict(list_targets(study_results, rank_arms(study_results)))['alibi'] == ['2', '30', '–', '–']
  study_results['study']['metric'] = 'accuracy'
  assert list_targets(study_results, rank_arms(study_results)) == []


@pytest.mark.parametrize('target, steps', [(5, 0), (4, 10), (3, 20), (1, None)])
def test_a_curve_is_linear_between_its_steps(target, steps):
  assert steps_to({0: 5, 20: 3, 40: 2}, target) == steps


def test_curves_are_drawn_against_costs_that_differ():
  study_results = made_up()
  names = [plot.name for plot in list_plots(study_results, rank_arms(study_results))]
  assert 'curves_flops' in names and 'curves_time' not in names
