"""Results: invalid ones are refused, and values are found by arm, seed and x."""

import re

import pytest

from tests.studies.report.made_up import results
from tfm.studies.report.values import check_results, loss_curves, metric_names, values_by_x


def test_a_diverged_seed_has_a_curve_and_no_line():
  study_results = results(dict(rope=0.0, alibi=-0.3), diverged=dict(alibi=[1]))
  assert set(loss_curves(study_results, 'train')['alibi']) == {0, 1, 2}
  assert set(values_by_x(study_results, 'loss_at_length')['alibi']) == {0, 2}
  assert [*values_by_x(study_results, 'loss_at_length')['rope'][0]] == [64, 128, 256]


def test_parts_of_a_text_are_no_metrics_to_show():
  study_results = results(dict(rope=0.0))
  study_results['values'].append(dict(arm='rope', seed=0, metric='loss_in_part', x=3, value=1.0))
  assert metric_names(study_results, by_x=True) == ['loss_at_length', 'loss_by_position']


def broken(change):
  study_results = results(dict(rope=0.0, alibi=-0.3))
  change(study_results)
  return study_results


@pytest.mark.parametrize(
  'change, complaint',
  [
    (lambda r: r.pop('values'), "results lack 'values'; they have study, arms, curves"),
    (lambda r: r['study'].pop('base'), "study 'position' lacks base"),
    (lambda r: r['arms'][1].pop('error'), "arm 'alibi' lacks error"),
    (lambda r: r['arms'].append(r['arms'][0]), "two arms have the name 'rope'; use different names"),
    (lambda r: r['study'].update(base='sine'), "study.base='sine' is not an arm; the arms are rope, alibi"),
    (
      lambda r: r['values'][0].update(arm='sine'),
      "values contain the unknown arm 'sine'; the arms are rope, alibi",
    ),
    (
      lambda r: r['values'].append(r['values'][0]),
      "values contain {'arm': 'rope', 'seed': 0, 'metric': 'loss', 'x': None} twice",
    ),
    (
      lambda r: r['curves'].append(r['curves'][0]),
      "curves contain {'arm': 'rope', 'seed': 0, 'split': 'train', 'step': 0} twice",
    ),
    (
      lambda r: r['curves'][0].update(split='test'),
      "curves contain the unknown split 'test'; use train or validation",
    ),
    (
      lambda r: r['study'].update(metric='bleu'),
      "no arm has a finite scalar value of study.metric='bleu'; the results have values of loss, accuracy",
    ),
    (
      lambda r: r['study'].update(metric='loss_at_length'),
      "no arm has a finite scalar value of study.metric='loss_at_length'",
    ),
    (lambda r: r.update(values=[]), 'the results have values of no metric'),
    (lambda r: (r.update(values=[]), r['arms'][1].update(error='killed\nby')), 'and errors of alibi: killed'),
  ],
)
def test_invalid_input_is_rejected(change, complaint):
  with pytest.raises(ValueError, match=re.escape(complaint)) as caught:
    check_results(broken(change))
  assert '\n' not in str(caught.value)
