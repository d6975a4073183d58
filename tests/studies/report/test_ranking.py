"""The order of arms, their verdicts, and invalid results."""

import math
import re

import pytest

from tests.studies.report.made_up import results
from tfm.studies import statistics
from tfm.studies.report import ranking, sentences


def verdicts(result):
  return {row.name: row.verdict for row in ranking.rank_arms(result)}


def test_order_and_verdicts():
  study_results = results(dict(alibi=-0.3, rope=0.0, none=0.2), seeds=range(7))
  rows = ranking.rank_arms(study_results)
  assert [(row.rank, row.name, row.index, row.verdict) for row in rows] == [
    (1, 'alibi', 0, 'better'),
    (2, 'rope', 1, 'base'),
    (3, 'none', 2, 'worse'),
  ]
  assert rows[0].comparison.difference.mean == pytest.approx(-0.3) and rows[1].comparison is None
  assert (
    sentences.answer_question(study_results, rows)
    == 'alibi is better than rope in loss; none is worse than rope in loss.'
  )


def test_higher_is_better_reverses_the_order():
  study_results = results(
    dict(alibi=-0.3, rope=0.0), seeds=range(6), metric='accuracy', lower_is_better=False
  )
  assert verdicts(study_results) == dict(alibi='better', rope='base')
  assert [row.name for row in ranking.rank_arms(study_results)] == ['alibi', 'rope']
  study_results['study']['lower_is_better'] = True
  assert verdicts(study_results) == dict(rope='base', alibi='worse')


def test_too_few_seeds_show_nothing_however_far_apart():
  study_results = results(dict(alibi=-30.0, rope=0.0, none=50.0))
  assert verdicts(study_results) == dict(alibi='no difference shown', rope='base', none='no difference shown')
  answer = sentences.answer_question(study_results, ranking.rank_arms(study_results))
  assert answer.startswith(
    'No difference from rope in loss is shown for alibi and none, and so few seeds cannot show one'
  )
  assert (
    f'{statistics.seeds_needed(2)} seeds could show one' in answer
    and 'the lowest mean loss is that of alibi' in answer
  )


def test_unfinished_arms_have_a_reason():
  study_results = results(
    dict(rope=0.0, alibi=-0.3, learned=0.1, none=0.2, t5=0.3),
    seeds=range(7),
    diverged=dict(none=[*range(7)], t5=[2]),
    failed=dict(learned='ValueError: no position 1024\n  at line 3'),
  )
  study_results['values'] = [v for v in study_results['values'] if (v['arm'], v['seed']) != ('alibi', 4)]
  rows = {row.name: row for row in ranking.rank_arms(study_results)}
  assert len(rows) == 5 and [*rows][-2:] == ['learned', 'none']
  assert rows['learned'].notes == ('failed: ValueError: no position 1024',) and rows['learned'].rank is None
  assert (
    rows['none'].notes == ('diverged at seeds 0, 1, 2, 3, 4, 5, 6',)
    and rows['none'].verdict == 'did not finish'
  )
  assert (
    rows['t5'].notes == ('diverged at seed 2',)
    and 2 not in rows['t5'].values
    and rows['t5'].comparison.difference.n == 6
  )
  assert rows['alibi'].notes == ('no finite loss of seed 4',) and rows['alibi'].summary.n == 6
  assert rows['t5'].summary.mean == pytest.approx(sum(rows['t5'].values.values()) / 6)
  assert sentences.answer_question(study_results, [*rows.values()]).endswith(
    'learned and none did not finish.'
  )


def test_untrained_arms_are_not_failed():
  study_results = results(dict(rope=0.0, alibi=-0.3, learned=0.1, none=0.2))
  study_results['values'] = [
    v
    for v in study_results['values']
    if v['arm'] not in ('learned', 'none') and (v['arm'], v['seed']) != ('alibi', 2)
  ]
  untrained = dict(rope=[], alibi=[2], learned=[0, 1, 2], none=[1, 2])
  for arm in study_results['arms']:
    arm['untrained'] = untrained[arm['name']]
  rows = {row.name: row for row in ranking.rank_arms(study_results)}
  assert rows['learned'].verdict == 'not trained yet' and rows['learned'].notes == ()
  assert rows['none'].verdict == 'did not finish' and rows['none'].notes == ('no finite loss of seed 0',)
  assert rows['alibi'].notes == ('seed 2 not trained yet',)
  assert sentences.answer_question(study_results, [*rows.values()]).endswith(
    'none did not finish; learned is not trained yet.'
  )


@pytest.mark.parametrize('value', (None, math.nan, math.inf))
def test_non_finite_values_are_excluded_and_noted(value):
  study_results = results(dict(rope=0.0, alibi=-0.3))
  for v in study_results['values']:
    if (v['arm'], v['seed'], v['metric']) == ('alibi', 1, 'loss'):
      v['value'] = value
  alibi, rope = ranking.rank_arms(study_results)
  assert set(alibi.values) == {0, 2} and alibi.notes == ('no finite loss of seed 1',) and not rope.notes


def test_a_base_that_failed_compares_nothing():
  study_results = results(dict(rope=0.0, alibi=-0.3), failed=dict(rope='killed'))
  assert verdicts(study_results) == dict(alibi='not compared', rope='did not finish')
  assert sentences.answer_question(study_results, ranking.rank_arms(study_results)).startswith(
    'Nothing could be compared with rope; the lowest mean loss'
  )


def test_several_bases():
  study_results = results({'rope': 0.0, 'alibi': -0.3, 'far rope': 5.0, 'far alibi': 5.3}, seeds=range(8))
  study_results['study']['against'] = {'far rope': 'far rope', 'far alibi': 'far rope'}
  rows = ranking.rank_arms(study_results)
  assert verdicts(study_results) == {
    'alibi': 'better',
    'rope': 'base',
    'far rope': 'base',
    'far alibi': 'worse',
  }
  assert (
    sentences.answer_question(study_results, rows)
    == 'alibi is better than rope in loss; far alibi is worse than far rope in loss.'
  )
  study_results['study']['against'] = {'far alibi': 'near rope'}
  with pytest.raises(ValueError, match=r"study.far alibi='near rope' is not an arm"):
    ranking.rank_arms(study_results)


def test_no_base():
  study_results = results(dict(rope=0.0, alibi=-0.3), base=None)
  assert set(verdicts(study_results).values()) == {'not compared'}
  assert 'no base to compare with' in sentences.answer_question(
    study_results, ranking.rank_arms(study_results)
  )


def test_many_arms_are_counted_in_the_answer():
  study_results = results({'rope': 0.0} | {f'arm{i}': -0.1 - i for i in range(9)}, seeds=range(10))
  assert sentences.answer_question(study_results, ranking.rank_arms(study_results)) == (
    'arm8, arm7, arm6, arm5, arm4, arm3 and 3 more are better than rope in loss.'
  )


def test_divergence_has_a_reason():
  study_results = results(dict(rope=0.0, alibi=-0.3), diverged=dict(alibi=[1]))
  study_results['arms'][1]['why'] = 'train loss is nan at step 2'
  (alibi,) = (row for row in ranking.rank_arms(study_results) if row.name == 'alibi')
  assert alibi.notes == ('diverged at seed 1: train loss is nan at step 2',)


def test_a_diverged_seed_has_a_curve_and_no_line():
  study_results = results(dict(rope=0.0, alibi=-0.3), diverged=dict(alibi=[1]))
  assert set(ranking.loss_curves(study_results, 'train')['alibi']) == {0, 1, 2}
  assert set(ranking.values_by_x(study_results, 'loss_at_length')['alibi']) == {0, 2}
  assert [*ranking.values_by_x(study_results, 'loss_at_length')['rope'][0]] == [64, 128, 256]


def test_digits_show_two_of_the_deviation():
  def summaries(*deviations):
    return [statistics.Summary(3, 2.0, d, 1.0, 3.0, None) for d in deviations]

  assert [ranking.decimals_for(summaries(d)) for d in (12.0, 3.0, 0.5, 0.012, 0.0034)] == [0, 1, 2, 3, 4]
  assert ranking.decimals_for(summaries(0.01, 0.02, 5.0)) == 3
  # Of one seed each: two digits more than the spread of means needs, and of a lone mean three in all.
  one = [statistics.Summary(1, mean, None, mean, mean, None) for mean in (2.0, 2.3)]
  assert (ranking.decimals_for(one), ranking.decimals_for(one[:1])) == (3, 3)
  assert (
    ranking.format_number(-0.12345, 3) == '−0.123' and ranking.format_number(0.5, 2, sign=True) == '+0.50'
  )
  assert ranking.format_number(12345.6, 0) == '12,346'


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
    ranking.rank_arms(broken(change))
  assert '\n' not in str(caught.value)
