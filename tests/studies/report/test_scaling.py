"""The report of a study with scales: its answer, its table and its picture say what was planted."""

import numpy as np
import pytest

from tests.studies.report.made_up import results
from tfm.studies.report import scaling, sentences
from tfm.studies.report.page import write_report
from tfm.studies.report.ranking import rank_arms
from tfm.studies.report.tables import format_ranking


SCALES = ('16', '32', '64', '128', '256')
# A, α of loss = 1.5 + A (C / 1e13)^-α.
PLANTED = dict(rope=(1.0, 0.25), alibi=(0.9, 0.2))


@pytest.fixture
def study_results():
  names = [f'{series} + {scale}' for series in PLANTED for scale in SCALES]
  made = results(
    dict.fromkeys(names, 0.0),
    base='rope + 16',
    against={name: 'rope + ' + name.split(' + ')[1] for name in names},
    scales=[*SCALES],
    match=None,
  )
  draw = np.random.default_rng(0)
  arms = {arm['name']: arm for arm in made['arms']}
  for i, name in enumerate(names):
    arms[name] |= dict(flops_per_token=1e6 * 10 ** (i % 5 / 4), tokens=1e7 * 10 ** (i % 5 / 4))
  for value in made['values']:
    if value['metric'] == 'loss':
      arm, (A, exponent) = arms[value['arm']], PLANTED[value['arm'].split(' + ')[0]]
      compute = arm['flops_per_token'] * arm['tokens']
      value['value'] = (1.5 + A * (compute / 1e13) ** -exponent) * np.exp(draw.normal(0, 0.001))
  return made


@pytest.mark.slow
def test_answer_is_what_was_planted(study_results, tmp_path):
  """At the smallest compute a FLOP of alibi is worth 0.9^-4 = 1.52 of rope, at 100 times as much 0.61."""
  answer = sentences.answer_question(study_results, rank_arms(study_results))
  assert answer.startswith('Beside rope alibi is better at 2 of 5 scales by ')
  assert 'a FLOP of alibi is worth 1.5' in answer and 'FLOPs of rope at 1e+13 and 0.6' in answer
  assert '] at 1e+15: the curves cross at ' in answer
  curve = scaling.fit_curves(study_results)['alibi']
  assert curve.crossing == pytest.approx(0.9**-20 * 1e13, rel=0.1)
  page = write_report(study_results, tmp_path)
  assert (tmp_path / 'scaling.png').stat().st_size > 1000
  for text in (page.read_text(), (tmp_path / 'report.md').read_text(), format_ranking(study_results)):
    assert answer in text and f'fitted jointly with one E, {curve.floor:.3f}' in text
  read = dict(scaling.tabulate_read(study_results))['alibi']
  assert scaling.order_scales(study_results) == [*SCALES]
  assert [float(cell.split()[0]) for cell in read] == pytest.approx([1.52, 1.21, 0.96, 0.76, 0.61], abs=0.03)
  assert f'; read without a fit it is worth {read[4]} to {read[0]}' in answer
  assert ' | '.join(read) in (tmp_path / 'report.md').read_text()
  rows = dict(scaling.tabulate_curves(study_results))
  assert rows['rope'][1:] == ['–', '–', 'base'] and rows['alibi'][3] == 'crosses'
  assert rows['alibi'][0] in (tmp_path / 'report.md').read_text()


def test_a_series_without_all_scales_is_named(study_results):
  study_results['values'] = [value for value in study_results['values'] if value['arm'] != 'alibi + 256']
  assert [*scaling.fit_curves(study_results)] == ['rope']
  answer = sentences.answer_question(study_results, rank_arms(study_results))
  assert 'no curve of alibi, without results at some scales' in answer


def test_a_series_of_which_a_run_diverged_has_no_curve(study_results):
  [arm] = (arm for arm in study_results['arms'] if arm['name'] == 'alibi + 256')
  arm['diverged'] = [1]
  assert [*scaling.fit_curves(study_results)] == ['rope']
  answer = sentences.answer_question(study_results, rank_arms(study_results))
  assert 'no curve of alibi, of which runs diverged' in answer


def test_without_scales_nothing_is_fitted():
  plain = results(dict(rope=0.0, alibi=0.1))
  assert scaling.fit_curves(plain) == {} == scaling.list_points(plain)
  assert scaling.describe_curves(plain) == [] == scaling.list_scaling_plots(plain, 'loss')
