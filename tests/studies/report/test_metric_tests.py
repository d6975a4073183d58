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
