"""The order of arms, their verdicts, what may be best, and what did not finish."""

import math

import pytest

from tests.studies.report.made_up import results
from tfm.studies.report.ranking import rank_arms
from tfm.studies.report.sentences import answer_question
from tfm.studies.report.tables import format_ranking, tabulate_ranking


def verdicts(study_results):
  return {row.name: row.verdict for row in rank_arms(study_results).rows}


def answer(study_results):
  return answer_question(study_results, rank_arms(study_results))


def test_order_and_verdicts():
  study_results = results(dict(alibi=-0.3, rope=0.0, none=0.2))
  ranking = rank_arms(study_results)
  assert [(row.rank, row.name, row.index, row.verdict) for row in ranking.rows] == [
    (1, 'alibi', 0, 'better'),
    (2, 'rope', 1, 'base'),
    (3, 'none', 2, 'worse'),
  ]
  assert ranking.rows[0].comparison.difference == pytest.approx(-0.3, abs=0.01)
  assert ranking.rows[1].comparison is None and ranking.bases == ['rope']


def test_the_answer_says_what_is_best_by_how_much_and_how_sure():
  study_results = results(dict(alibi=-0.3, rope=0.0, none=0.2))
  ranking, text = rank_arms(study_results), answer(study_results)
  low, high = ranking.lead.interval
  assert text.startswith(
    f'alibi has the lowest loss, {ranking.rows[0].summary.mean:.4f}: {ranking.lead.difference:.4f} below the '
    f'next, rope (95 % interval {low:.4f} to {high:.4f}, p < 0.001; 3 seeds); '
  )
  assert '; alibi is better than rope by 0.3' in text and '; none is worse than rope by 0.1' in text
  # Where the base is the best, all others are worse.
  text = answer(results(dict(rope=0.0, alibi=0.1, none=0.2, t5=0.3)))
  assert text.startswith('rope has the lowest loss, ') and '; all 3 others are worse by 0.1' in text


def test_what_is_not_shown_to_be_worse_may_be_best():
  """The base is worse, and two arms that nobody compared with each other lead."""
  study_results = results(dict(rope=0.0, alibi=-0.3, fire=-0.3, none=0.2), equal_within=0.05)
  ranking = rank_arms(study_results)
  assert set(ranking.leaders) == {'alibi', 'fire'} and ranking.lead.finding == 'undecided'
  first, second = ranking.leaders
  assert f'{first} has the lowest mean loss' in answer(study_results)
  assert f'but {second} is not shown to be worse than it' in answer(study_results)


def test_higher_is_better_reverses_the_order():
  study_results = results(dict(alibi=-0.3, rope=0.0), metric='accuracy', lower_is_better=False)
  assert verdicts(study_results) == dict(alibi='better', rope='base')
  assert [row.name for row in rank_arms(study_results).rows] == ['alibi', 'rope']
  assert answer(study_results).startswith('alibi has the highest accuracy') and 'above the next' in answer(
    study_results
  )
  study_results['study']['lower_is_better'] = True
  assert verdicts(study_results) == dict(rope='base', alibi='worse')


def test_the_same_and_the_undecided():
  study_results = results(dict(rope=0.0, alike=0.0, near=0.004), equal_within=0.02)
  assert verdicts(study_results) == dict(rope='base', alike='same', near='same')
  text = answer(study_results)
  assert 'are the same as rope within 0.02' in text
  study_results['study']['equal_within'] = None
  rows = {row.name: row for row in rank_arms(study_results).rows}
  assert rows['alike'].verdict == 'undecided'
  assert f'alike ({rows["alike"].judged.seeds or "more than 50"} seeds would' in answer(study_results)


def test_a_difference_that_is_shown_and_does_not_matter_is_said_to_be_both():
  text = answer(results(dict(rope=0.0, alibi=0.3), equal_within=0.5))
  assert text.startswith('rope has the lowest loss, ') and 'below the next, alibi (95 % interval' in text
  assert text.endswith('p < 0.001; 3 seeds); alibi is the same as rope within 0.5.')


def test_one_seed_decides_nothing_however_far_apart():
  study_results = results(dict(alibi=-30.0, rope=0.0, none=50.0), seeds=[0])
  assert verdicts(study_results) == dict(alibi='undecided', rope='base', none='undecided')
  assert answer(study_results) == (
    'alibi has the lowest mean loss, −28.0 (1 seed); undecided against rope: alibi and none (one seed of '
    'each arm cannot show how much seeds differ).'
  )


def test_unfinished_arms_have_a_reason():
  study_results = results(
    dict(rope=0.0, alibi=-0.3, learned=0.1, none=0.2, t5=0.3),
    seeds=range(7),
    diverged=dict(none=[*range(7)], t5=[2]),
    failed=dict(learned='ValueError: no position 1024\n  at line 3'),
  )
  study_results['values'] = [v for v in study_results['values'] if (v['arm'], v['seed']) != ('alibi', 4)]
  rows = {row.name: row for row in rank_arms(study_results).rows}
  assert len(rows) == 5 and [*rows][-2:] == ['learned', 'none']
  assert rows['learned'].notes == ('failed: ValueError: no position 1024',) and rows['learned'].rank is None
  assert rows['learned'].verdict == 'did not finish'
  # All seven runs diverged, of rope none: that is worse.
  assert rows['none'].notes == ('diverged at seeds 0, 1, 2, 3, 4, 5, 6',)
  assert (rows['none'].verdict, rows['none'].rank, rows['none'].outcome.k) == ('worse', None, 0)
  assert rows['t5'].notes == ('diverged at seed 2',) and 2 not in rows['t5'].values
  assert rows['t5'].verdict == 'worse' and 'by what finished' in rows['t5'].judged.reason
  assert rows['alibi'].notes == ('no finite loss of seed 4',) and rows['alibi'].summary.n == 6
  text = answer(study_results)
  assert text.endswith('learned did not finish.') and 't5 and none are worse than rope' in text


def test_divergence_ranks_last_whatever_finished():
  study_results = results(dict(rope=0.0, lucky=-0.5, none=0.2), diverged=dict(lucky=[1]), equal_within=1.0)
  ranking = rank_arms(study_results)
  assert [row.name for row in ranking.rows] == ['rope', 'none', 'lucky']
  assert ranking.rows[2].verdict == 'undecided' and ranking.leaders[0] == 'rope'


def test_solved_tasks_are_counted():
  study_results = results(dict(rope=0.0, none=0.2), seeds=range(8), solved_at=2.1)
  ranking = rank_arms(study_results)
  assert verdicts(study_results) == dict(rope='base', none='worse')
  assert [(row.outcome.k, row.outcome.n) for row in ranking.rows] == [(8, 8), (0, 8)]
  assert answer(study_results) == 'rope solves 8 of 8 seeds; none (0 of 8) is worse than rope.'


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
  rows = {row.name: row for row in rank_arms(study_results).rows}
  assert rows['learned'].verdict == 'not trained yet' and rows['learned'].notes == ()
  assert rows['none'].verdict == 'did not finish' and rows['none'].notes == ('no finite loss of seed 0',)
  assert rows['alibi'].notes == ('seed 2 not trained yet',)
  assert answer(study_results).endswith('none did not finish; learned is not trained yet.')


@pytest.mark.parametrize('value', (None, math.nan, math.inf))
def test_non_finite_values_are_noted_and_count_as_diverged(value):
  study_results = results(dict(rope=0.0, alibi=-0.3))
  for v in study_results['values']:
    if (v['arm'], v['seed'], v['metric']) == ('alibi', 1, 'loss'):
      v['value'] = value
  rows = {row.name: row for row in rank_arms(study_results).rows}
  alibi = rows['alibi']
  assert (
    set(alibi.values) == {0, 2} and alibi.notes == ('no finite loss of seed 1',) and not rows['rope'].notes
  )
  # What could not be measured is lost, not the worst outcome.
  assert (alibi.outcome.k, alibi.outcome.n) == ((2, 2) if value is None else (2, 3))


def test_a_base_that_failed_compares_nothing():
  study_results = results(dict(rope=0.0, alibi=-0.3), failed=dict(rope='killed'))
  assert verdicts(study_results) == dict(alibi='not compared', rope='did not finish')
  assert 'alibi could not be compared with rope; rope did not finish' in answer(study_results)


def test_several_bases():
  study_results = results({'rope': 0.0, 'alibi': -0.3, 'far rope': 5.0, 'far alibi': 5.3})
  study_results['study']['against'] = {'far rope': 'far rope', 'far alibi': 'far rope'}
  assert verdicts(study_results) == {
    'alibi': 'better',
    'rope': 'base',
    'far rope': 'base',
    'far alibi': 'worse',
  }
  text = answer(study_results)
  assert 'alibi is better than rope by 0.2' in text and 'far alibi is worse than far rope by 0.2' in text
  # What is best over all groups was not asked.
  assert rank_arms(study_results).leaders == ()


def test_no_base():
  study_results = results(dict(rope=0.0, alibi=-0.3), base=None)
  assert set(verdicts(study_results).values()) == {'not compared'}
  assert answer(study_results).startswith('alibi has the lowest loss')


def test_many_arms_are_counted_in_the_answer():
  study_results = results({'rope': 0.0} | {f'arm{i}': -0.1 - i for i in range(9)})
  text = answer(study_results)
  assert 'all 9 others are better than rope by 0.0989 to 8.1' in text
  study_results = results({'rope': 0.0, 'none': 1.0} | {f'arm{i}': -0.1 - i for i in range(9)})
  assert 'arm8, arm7, arm6, arm5, arm4, arm3 and 3 more are better than rope' in answer(study_results)


def test_divergence_has_a_reason():
  study_results = results(dict(rope=0.0, alibi=-0.3), diverged=dict(alibi=[1]))
  study_results['arms'][1]['why'] = 'train loss is nan at step 2'
  (alibi,) = (row for row in rank_arms(study_results).rows if row.name == 'alibi')
  assert alibi.notes == ('diverged at seed 1: train loss is nan at step 2',)


def with_parts(study_results, spread):
  """The same with losses in 16 parts of the text, of which the arms differ by `spread` from part to part."""
  for i, arm in enumerate(study_results['arms']):
    for seed in study_results['study']['seeds']:
      (loss,) = (
        v['value']
        for v in study_results['values']
        if (v['arm'], v['seed'], v['metric'], v['x']) == (arm['name'], seed, 'loss', None)
      )
      for x in range(16):
        fields = dict(arm=arm['name'], seed=seed, x=x)
        value = loss + i * spread * (-1) ** x
        study_results['values'].append(fields | dict(metric='loss_in_part', value=value))
        study_results['values'].append(fields | dict(metric='tokens_in_part', value=100))
  return study_results


def test_intervals_for_other_texts_have_a_column():
  study_results = results(dict(rope=0.0, alibi=-0.3))
  assert 'for other texts' not in format_ranking(study_results)
  study_results = with_parts(study_results, 1.0)
  columns, rows = tabulate_ranking(study_results, rank_arms(study_results))
  headings = [heading for heading, _ in columns]
  assert headings[5:7] == ['95 % interval', 'for other texts']
  cells = dict(zip(headings, rows[0]))
  assert cells['arm'] == 'alibi' and cells['95 % interval'] != cells['for other texts'] != '–'
  assert 'for other texts' in format_ranking(study_results)


def test_intervals_for_other_texts_are_wider():
  for spread in (0.0, 0.02, 1.0):
    (alibi,) = (
      row
      for row in rank_arms(with_parts(results(dict(rope=0.0, alibi=-0.3)), spread)).rows
      if row.name == 'alibi'
    )
    half = (alibi.comparison.interval[1] - alibi.comparison.interval[0]) / 2
    error = spread * math.sqrt(16 / 15 / 16)
    wide = (alibi.text_interval[1] - alibi.text_interval[0]) / 2
    assert wide == pytest.approx(half * math.hypot(1, error / alibi.comparison.error))
    assert sum(alibi.text_interval) / 2 == pytest.approx(alibi.comparison.difference)
  assert rank_arms(results(dict(rope=0.0, alibi=-0.3))).rows[0].text_interval is None
