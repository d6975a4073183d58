"""Warnings: each is given where its reason is there, and not without it."""

import pytest

from tests.studies.report.made_up import results
from tests.studies.report.test_ranking import with_parts
from tfm.studies.report import sentences
from tfm.studies.report.caveats import list_caveats
from tfm.studies.report.ranking import rank_arms


def caveats(study_results, about):
  return [line for line in list_caveats(study_results, rank_arms(study_results)) if about in line]


def with_curves(study_results, curves):
  """The same with these validation losses of every seed, at steps 0, 20, …, 100."""
  study_results['curves'] = [
    dict(arm=arm, seed=seed, split='validation', step=20 * i, loss=loss)
    for arm, losses in curves.items()
    for seed in study_results['study']['seeds']
    for i, loss in enumerate(losses)
  ]
  return study_results


def test_flat_curves_of_a_tuned_study_need_no_warning():
  study_results = with_curves(
    results(dict(rope=0.0, alibi=0.3)), dict(rope=[5, 2, 2, 2], alibi=[5, 2.3, 2.3, 2.3])
  )
  assert list_caveats(study_results, rank_arms(study_results)) == []


def test_untuned_arms():
  assert caveats(results(dict(rope=0.0, alibi=0.3), learning_rates=[]), 'No learning rate is tuned')
  # Of finished runs it is not known.
  assert not caveats(results(dict(rope=0.0, alibi=0.3)), 'rate')


@pytest.mark.parametrize('rate, side', [(0.001, 'lowest'), (0.004, 'highest'), (0.002, None)])
def test_a_rate_at_an_end_of_its_range(rate, side):
  study_results = results(dict(rope=0.0, alibi=0.3), learning_rates=[0.001, 0.002, 0.004])
  for arm in study_results['arms']:
    arm |= dict(rate=0.002, rates=dict(reached={'0.001': 2.1, '0.002': 2.0, '0.004': 2.1}, diverged={}))
  study_results['arms'][1]['rate'] = rate
  found = caveats(study_results, 'best learning rate')
  assert [f'rate of alibi is the {side}' in line for line in found] == [True] * (side is not None)


@pytest.mark.parametrize('chosen, is_lucky', [(1.5, True), (2.29, False)])
def test_a_rate_that_a_lucky_run_chose(chosen, is_lucky):
  """No seed at the rate comes near the run that chose it."""
  study_results = results(dict(rope=0.0, alibi=0.3), learning_rates=[0.001, 0.002, 0.004])
  for arm, best in zip(study_results['arms'], (2.0, chosen)):
    arm |= dict(rate=0.002, rates=dict(reached={'0.001': 9.0, '0.002': best, '0.004': 9.0}, diverged={}))
  found = caveats(study_results, 'chose the rate')
  assert ['alibi reached 1.5' in line for line in found] == [True] * is_lucky


def with_cosines(**cosines):
  study_results = results(dict.fromkeys(cosines, 0.0))
  for arm, cosine in cosines.items():
    study_results['values'] += [
      dict(arm=arm, seed=seed, metric='token_cosine_at_start', x=None, value=cosine) for seed in range(3)
    ]
  return study_results


def test_arms_that_start_with_all_tokens_alike():
  [line] = caveats(with_cosines(rope=0.1, alibi=0.95), 'alike')
  assert 'tokens of alibi are alike (mean cosine up to 0.95)' in line


def test_arms_that_start_unequally():
  [line] = caveats(with_cosines(rope=0.7, alibi=0.08, none=0.5, learned=0.3), 'alike')
  assert 'tokens of rope (mean cosine 0.70) are more alike than those of alibi (mean cosine 0.08)' in line
  assert not caveats(with_cosines(rope=0.35, alibi=0.1), 'alike')
  # Where an arm begins with all tokens alike, that is said, and the others are compared.
  assert len(caveats(with_cosines(rope=0.7, alibi=0.08, none=0.95), 'alike')) == 2


def test_studies_say_where_it_is_unknown_how_arms_begin():
  of_study = dict(learning_rates=[1e-3, 2e-3])
  shifts = dict(rope=0.0, alibi=0.3)
  [line] = caveats(results(shifts, **of_study), 'begins alive')
  assert line.startswith('Whether an arm begins alive is not measured of rope and alibi')
  measured = with_cosines(rope=0.1, alibi=0.1)
  measured['study'] |= of_study
  assert not caveats(measured, 'begins alive')
  measured['values'] = [v for v in measured['values'] if v['arm'] == 'rope' or 'cosine' not in v['metric']]
  [line] = caveats(measured, 'begins alive')
  assert line.startswith('Whether an arm begins alive is not measured of alibi:')
  # Of finished runs, which are compared without a study, it is not asked.
  assert not caveats(results(shifts), 'begins alive')


@pytest.mark.parametrize(
  'losses, is_steep', [([5, 3, 2.5, 2.2, 2.1, 2.0], True), ([5, 3, 2.2, 2.05, 2.01, 2.0], False)]
)
def test_a_loss_that_still_falls_steeply(losses, is_steep):
  """By more than 1 % in the last fifth."""
  study_results = with_curves(results(dict(rope=0.0, alibi=0.3)), dict(rope=losses, alibi=[9.0] * 6))
  found = caveats(study_results, 'falls steeply')
  assert bool(found) == is_steep
  assert not is_steep or 'loss of rope still' in found[0] and '0.100 (rope)' in found[0]


def test_a_fall_within_the_noise_is_not_steep():
  curves = dict(rope=[3, 2.4, 2.1, 2.09, 2.08, 2.0], alibi=[9.0] * 6)
  study_results = with_curves(results(dict(rope=0.0, alibi=0.3)), curves)
  assert caveats(study_results, 'steeply')
  for v in study_results['values']:
    v['value'] += v['seed'] * (v['metric'] == 'loss')  # the seeds vary by 1
  assert not caveats(study_results, 'steeply')


def test_curves_that_cross_late():
  early = dict(rope=[5, 2.0, 2, 2, 2, 2], alibi=[4, 1.9, 2.3, 2.3, 2.3, 2.3])
  late = dict(rope=[5, 3.0, 2.9, 2.8, 2.0, 2], alibi=[4, 2.3, 2.3, 2.3, 2.3, 2.3])
  assert not caveats(with_curves(results(dict(rope=0.0, alibi=0.3)), early), 'cross')
  (found,) = caveats(with_curves(results(dict(rope=0.0, alibi=0.3)), late), 'cross')
  assert 'training: rope and alibi after step 60 of 100. Another' in found
  # A gap within the noise is no crossing.
  near = dict(rope=[5, 3, 2.302, 2.302, 2, 2], alibi=[4, 2.3, 2.3, 2.3, 2.3, 2.3])
  assert not caveats(with_curves(results(dict(rope=0.0, alibi=0.3)), near), 'cross')


def test_curves_of_two_arms_that_cross():
  """The base is listed first, and an arm of another base with none of them."""
  curves = dict(
    rope=[5, 3, 2.0, 2.0, 2.0, 2],
    alibi=[4, 2.3, 2.2, 2.2, 2.2, 2.2],
    none=[4, 2.9, 2.6, 2.5, 2.4, 2.1],
    other=[4, 1.9, 1.9, 1.9, 1.9, 2.4],
  )
  shifts = dict(rope=0.0, alibi=0.2, none=0.1, other=0.4)
  (found,) = caveats(with_curves(results(shifts), curves), 'cross')
  assert 'rope and other after step 80 of 100; none and alibi after step 80 of 100; ' in found
  (found,) = caveats(with_curves(results(shifts, against=dict(other='other')), curves), 'cross')
  assert 'training: none and alibi after step 80 of 100. Another' in found


@pytest.mark.parametrize('steps, is_steep', [((60, 80, 80), False), ((60, 80, 100), True)])
def test_a_loss_that_falls_where_a_run_ends_by_its_rule(steps, is_steep):
  """Nothing is cut short unless a run took all steps; nor do its curves cross."""
  curves = dict(rope=[9.0] * 6, alibi=[12.0, 11.0, 10.5, 10.0, 6.0, 4.0])
  study_results = with_curves(results(dict(rope=0.0, alibi=0.3)), curves)
  study_results['arms'][1]['steps'] = 100
  study_results['values'] += [
    dict(arm='alibi', seed=seed, metric='steps', x=None, value=value) for seed, value in enumerate(steps)
  ]
  assert bool(caveats(study_results, 'loss of alibi still falls steeply')) == is_steep
  assert bool(caveats(study_results, 'cross')) == is_steep


def with_tokens(study_results, tokens):
  for arm in study_results['arms']:
    for seed in study_results['study']['seeds']:
      study_results['values'].append(dict(arm=arm['name'], seed=seed, metric='tokens', x=None, value=tokens))
  return study_results


def test_a_small_text():
  (found,) = caveats(with_tokens(results(dict(rope=0.0, alibi=0.3)), 20_480), 'evaluation text')
  assert 'of 20,480 tokens' in found and 'the measure parts tells' in found
  assert not caveats(with_tokens(results(dict(rope=0.0, alibi=0.3)), 10**7), 'text')
  # With the measure it is known, and a verdict that does not hold for other texts is named.
  assert not caveats(with_tokens(with_parts(results(dict(rope=0.0, alibi=0.3)), 0.01), 20_480), 'text')
  (found,) = caveats(with_tokens(with_parts(results(dict(rope=0.0, alibi=0.3)), 3.0), 20_480), 'text')
  assert found.startswith('alibi: the verdict holds for this evaluation text')


def test_a_verdict_by_outcomes_does_not_depend_on_the_interval():
  """All eight runs of rope solve the task and none of alibi, however wide the interval of the mean."""
  study_results = with_parts(results(dict(rope=0.0, alibi=0.3), seeds=range(8), solved_at=2.1), 3.0)
  assert rank_arms(study_results).rows[1].verdict == 'worse'
  assert not caveats(study_results, 'alibi: the verdict')


def test_sameness_is_transferred_to_other_texts_by_its_margin():
  study_results = with_parts(results(dict(rope=0.0, alibi=0.0), equal_within=0.05), 0.02)
  assert not caveats(study_results, 'alibi: the verdict')
  study_results = with_parts(results(dict(rope=0.0, alibi=0.0), equal_within=0.05), 0.5)
  assert caveats(study_results, 'alibi: the verdict')


def test_parallel_jobs_are_reported():
  def explain(jobs):
    study_results = results(dict(rope=0.0, alibi=-0.3), jobs=jobs)
    return sentences.explain_statistics(study_results, rank_arms(study_results))

  assert any('Up to 4 processes' in line for line in explain(4))
  assert not any('processes' in line for line in explain(1))
  study = results(dict(rope=0.0, alibi=-0.3), seconds=7200)['study']
  assert dict(sentences.list_origin(study))['time'] == '2:00:00'
  assert dict(sentences.list_origin(study | dict(jobs=4)))['time'] == '2:00:00, of 4 processes together'
