"""The report of a study with tasks: its answer and its table say what was planted."""

import pytest

from tests.studies.report.made_up import results
from tfm.studies.report import sentences, suites, tables
from tfm.studies.report.page import write_report
from tfm.studies.report.ranking import rank_arms


TASKS = ('copy', 'sort', 'recall')


@pytest.fixture
def study_results():
  """alibi is better than rope in two of three tasks."""
  shifts = {f'{series} + {task}': 0.0 for series in ('rope', 'alibi') for task in TASKS}
  shifts |= {'alibi + copy': -0.5, 'alibi + sort': -0.5, 'alibi + recall': 0.5}
  against = {name: 'rope + ' + name.split(' + ')[1] for name in shifts}
  return results(shifts, base='rope + copy', against=against, tasks=[*TASKS], match=None)


@pytest.mark.slow
def test_answer_is_what_was_planted(study_results, tmp_path):
  answer = sentences.answer_question(study_results, rank_arms(study_results))
  assert (
    answer.startswith('Beside rope alibi is better at 2 of 3 tasks by 0.5')
    and 'worse at 1 of 3 tasks by 0.5' in answer
  )
  assert 'over 3 tasks alibi has the best interquartile mean of loss, 1.' in answer
  assert 'a run of alibi is better than one of rope with probability 0.667 [0.667, 0.667]' in answer
  page = write_report(study_results, tmp_path).read_text()
  assert answer in page and 'Over all tasks' in page and 'draws of the runs of each task' in page
  (base, (_, none)), (name, (mean, probability)) = suites.tabulate_suite(study_results)
  assert (base, none, name) == ('rope', '–', 'alibi') and mean in page and probability in page
  assert mean in (tmp_path / 'report.md').read_text()


def test_higher_is_better(study_results):
  study_results['study'] |= dict(metric='accuracy', lower_is_better=False)
  (_, probability) = suites.compute_aggregates(study_results)['alibi']
  assert probability.value == pytest.approx(2 / 3)  # accuracy falls with the loss


@pytest.mark.parametrize('metric, lower_is_better, mean', [('loss', True, '∞'), ('accuracy', False, '0.2')])
def test_runs_that_diverged_are_the_worst_and_not_dropped(study_results, metric, lower_is_better, mean):
  """Three of nine runs of alibi, which were better than rope's at `copy`; the middle half begins with one."""
  study_results['study'] |= dict(metric=metric, lower_is_better=lower_is_better)
  before, _ = suites.compute_aggregates(study_results)['alibi']
  arms = {arm['name']: arm for arm in study_results['arms']}
  arms['alibi + copy']['diverged'] = [0, 1, 2]
  after, improvement = suites.compute_aggregates(study_results)['alibi']
  assert improvement.value == pytest.approx(1 / 3)  # 2 of 3 without
  assert after.value > before.value if lower_is_better else after.value < before.value
  assert suites.format_aggregate(after).startswith(mean)
  answer = sentences.answer_question(study_results, rank_arms(study_results))
  assert 'no aggregate' not in answer
  (_, explanation) = suites.explain_suite(study_results)
  assert explanation.endswith('counts as an infinite loss.' if lower_is_better else 'counts as 0.')


def test_a_series_without_all_runs_is_named(study_results):
  study_results['values'] = [
    value for value in study_results['values'] if (value['arm'], value['seed']) != ('alibi + sort', 1)
  ]
  answer = sentences.answer_question(study_results, rank_arms(study_results))
  assert 'no aggregate of alibi, without results of some runs' in answer


def test_published_numbers_are_beside_ours(study_results, tmp_path):
  assert tables.tabulate_published(study_results, rank_arms(study_results)) is None
  study_results['study']['published'] = {'rope + copy': [1.9, 'Press et al. 2022, table 1']}
  ranking = rank_arms(study_results)
  table = tables.tabulate_published(study_results, ranking)
  means = {row.name: f'{row.summary.mean:.{ranking.places}f}' for row in ranking.rows}
  rows = dict(table.rows)
  assert rows['rope + copy'] == [means['rope + copy'], '1.9', 'Press et al. 2022, table 1']
  assert rows['alibi + sort'] == [means['alibi + sort'], 'none published', '']
  page = write_report(study_results, tmp_path).read_text()
  for text in (page, (tmp_path / 'report.md').read_text()):
    assert 'Press et al. 2022, table 1' in text and 'none published' in text
