"""The tests of the metrics beside the study's."""

from tests.studies.report.made_up import results
from tfm.studies.report import tables
from tfm.studies.report.ranking import rank_arms


def test_an_arm_that_varies_more_has_an_interval_of_its_own():
  """Of an accuracy that jumps from seed to seed: that of the arms that vary alike would contain no seed."""
  study_results = results(dict(rope=0.0, alibi=-0.3, none=0.1, t5=0.0), seeds=range(5))
  for v in study_results['values']:
    if (v['metric'], v['arm']) == ('accuracy', 'none'):
      v['value'] += 0.3 * (v['seed'] % 2)
  ranking = rank_arms(study_results)
  widths = {}
  for name, [(_, interval)] in tables.tabulate_other_metrics(study_results, ranking)['rows']:
    low, high = map(float, interval.replace('−', '-').split(' to '))
    widths[name] = high - low
  assert widths['none'] > 0.3 > 10 * max(width for name, width in widths.items() if name != 'none')


def test_arms_of_which_runs_diverged_are_marked_untested():
  """An accuracy has no worst value that a run could count as; nor is an arm tested against such a base."""
  shifts = dict(rope=0.0, alibi=-0.3, none=0.1)
  assert marks(results(shifts)) == dict(rope='', alibi='▲', none='▼')
  assert marks(results(shifts, diverged=dict(none=[1]))) == dict(rope='', alibi='▲', none='(untested)')
  study_results = results(shifts, diverged=dict(rope=[1]))
  assert tables.tabulate_other_metrics(study_results, rank_arms(study_results))['names'] == [
    'accuracy (untested)'
  ]
  assert marks(study_results) == dict(rope='', alibi='', none='')


def marks(study_results):
  rows = tables.tabulate_other_metrics(study_results, rank_arms(study_results))['rows']
  return {name: mean.partition(' ')[2] for name, [(mean, _)] in rows}
