"""The first sentence claims no more than the table: where runs diverged, what finished is not all."""

from tests.studies.report.made_up import results
from tfm.studies.report import sentences
from tfm.studies.report.ranking import rank_arms


def answer(**fields):
  study_results = results(dict(rope=0.0, alibi=0.3, none=-0.5), seeds=range(10), **fields)
  return sentences.answer_question(study_results, rank_arms(study_results))


def test_a_leader_among_arms_of_which_one_diverged():
  text = answer(diverged=dict(none=[1]))
  assert text.startswith('rope has the lowest loss of the arms without a run that diverged, ')
  assert answer().startswith('none has the lowest loss, ')


def test_what_diverged_is_not_worse_by_what_finished():
  text = answer(diverged=dict(none=range(8)))
  assert 'alibi and none are worse than rope' in text and 'worse than rope by' not in text
  text = answer(diverged=dict(none=[*range(10)]))
  assert 'alibi and none are worse than rope' in text and 'worse than rope by' not in text
  assert 'alibi is worse than rope by 0.3' in answer()
