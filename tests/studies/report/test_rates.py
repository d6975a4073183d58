"""Learning rates that several runs chose."""

import math

import pytest

from tests.studies.report.made_up import results
from tfm.studies.learning_rates import choose_rate, find_interval
from tfm.studies.report.figures import list_plots
from tfm.studies.report.ranking import rank_arms
from tfm.studies.report.tables import tabulate_rates, tabulate_settings
from tfm.studies.statistics.summary import Spread


REACHED = {0.001: 2.03, 0.002: 2.0, 0.004: 2.02}


def test_a_mean_of_runs_is_called_so_and_bounds_the_rate_more_closely():
  study_results = results(dict(rope=0.0, alibi=0.3), learning_rates=[*REACHED], runs_per_rate=4)
  for arm in study_results['arms']:
    rates = dict(reached={f'{rate:g}': loss for rate, loss in REACHED.items()}, diverged={}, runs=4)
    arm |= dict(rate=0.00219, rates=rates)
  ranking = rank_arms(study_results)
  [plot] = [plot for plot in list_plots(study_results, ranking) if plot.name == 'rates']
  assert plot.caption.startswith('The mean of 4 runs at each rate that was tried')
  assert tabulate_rates(study_results, ranking).cells == 'means of 4 runs each (untested)'
  floor = ranking.findings.analysis.floor
  low, high = find_interval(REACHED, [*REACHED], 0.002, Spread(floor.deviation / math.sqrt(4), floor.df))
  _, *rates = zip(*(row for _, row in tabulate_settings(study_results, ranking)['rows']))
  assert rates[-1] == (f'0.00219 [{low:.2g}, {high:.2g}]',) * 2


def test_a_limit_beyond_the_rates_beside_the_best_is_only_said_to_be():
  study_results = results(dict(rope=0.0, alibi=0.3), learning_rates=[*REACHED])
  for arm in study_results['arms']:
    reached = {'0.001': 2.02, '0.002': 2.0, '0.004': 2.001, '0.008': 2.3}
    arm |= dict(rate=0.00274, rates=dict(reached=reached, diverged={}))
  ranking = rank_arms(study_results)
  floor = ranking.findings.analysis.floor
  low, high = find_interval({float(x): y for x, y in reached.items()}, [*map(float, reached)], 0.002, floor)
  assert 0.001 < low < 0.00274 and high > 1e6
  _, *rates = zip(*(row for _, row in tabulate_settings(study_results, ranking)['rows']))
  assert rates[-1] == (f'0.00274 [{low:.2g}, > 0.004]',) * 2


def test_rates_that_reach_a_goal_say_in_how_many_steps():
  """0.002 is the fastest; the ring is at the vertex of the steps, on the line of the metric."""
  study_results = results(dict(rope=0.0, alibi=0.3), learning_rates=[*REACHED])
  steps = {'0.001': 300.0, '0.002': 100.0, '0.004': 200.0}
  for arm in study_results['arms']:
    arm |= dict(
      rate=0.00215, rates=dict(reached={f'{rate:g}': x for rate, x in REACHED.items()}, steps=steps)
    )
  ranking = rank_arms(study_results)
  assert tabulate_rates(study_results, ranking).rows[0][1] == [
    '2.0300 in 300 steps',
    '2.0000 in 100 steps',
    '2.0200 in 200 steps',
  ]
  optimum = choose_rate(study_results['arms'][0]['rates'], [*REACHED], lower_is_better=False)
  x = math.log2(optimum.rate / 0.002)
  assert optimum.best == 0.002 and 0 < x < 0.5 and not optimum.is_at_edge
  assert optimum.value == pytest.approx(2.0 + 0.02 * x)
  [plot] = [plot for plot in list_plots(study_results, ranking) if plot.name == 'rates']
  assert 'the fastest' in plot.caption
  _, *rates = zip(*(row for _, row in tabulate_settings(study_results, ranking)['rows']))
  assert rates[-1] == ('0.00215',) * 2
