"""The report of a study with tasks: its answer and its table say what was planted."""

import pytest

from tests.studies.report.made_up import results
from tfm.studies.report import sentences, suites
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


def test_a_series_without_all_runs_is_named(study_results):
  study_results['values'] = [
    value for value in study_results['values'] if (value['arm'], value['seed']) != ('alibi + sort', 1)
  ]
  answer = sentences.answer_question(study_results, rank_arms(study_results))
  assert 'no aggregate of alibi, without results of some runs' in answer
