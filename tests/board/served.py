"""A folder of runs and a study, and a server of its board."""

import math

from tests.running_app import running
from tests.runs.made_up import write_run
from tests.studies.report.made_up import results
from tfm.board.server import build_app
from tfm.studies.report.page import write_report


LONG = 'a_run_whose_name_is_longer_than_a_telephone_is_wide_' * 2


def rows(shift, steps=40):
  """Metrics whose validation loss falls to 2 + shift, at the last step."""
  for step in range(1, steps + 1):
    loss = 2 + shift + 3 * math.exp(-step / 10)
    yield step, 'train', dict(loss=loss, learning_rate=1e-3 / step, batch='3f2a')
    if step % 10 == 0:
      yield step, 'validation', dict(loss=loss + shift / 10, perplexity=math.exp(loss))


def write_folder(folder, tiny):
  """Two runs, one that diverged, one without metrics, one that cannot be read, and a study."""
  steps = {'training.steps': 40}
  write_run(folder / 'rope', tiny(**steps), rows(0.1))
  write_run(folder / LONG, tiny(**steps, **{'model.position': 'alibi'}), rows(0.2))
  diverged = 15, 'train', dict(diverged='train loss is nan at step 16; that step is not saved')
  write_run(
    folder / 'fast <b>', tiny(**steps, **{'optimizer.learning_rate': 1.0}), [*rows(0.3, 15), diverged]
  )
  write_run(folder / 'new', tiny(**steps), [])
  write_run(folder / 'broken', tiny(**steps), [])
  (folder / 'broken/metrics.jsonl').write_text('nonsense\n')
  write_report(results({'rope': 0.0, 'alibi': -0.2}), folder / 'position')
  return folder


def serving(folder):
  """A block in which a server shows a folder; yields its address."""
  return running(build_app(folder))
