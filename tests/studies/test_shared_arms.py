"""Several processes of one study."""

import pytest

from tfm.config.overlay import complete
from tfm.runs.lock import lock_workdir
from tfm.studies import jobs, runner, store
from tfm.studies.arms import plan_arms
from tfm.studies.study import Study


def test_an_arm_that_another_process_trains_is_left_to_it(book, tmp_path, monkeypatch, capsys):
  """And no error of it is recorded."""
  config = complete(
    dict(
      data=dict(source=f'text({str(book)!r})', length=16),
      model=dict(layers=1, width=16, heads=2),
      optimizer=dict(warmup=2),
      training=dict(steps=4, batch_size=8),
    )
  )
  study = Study(
    question='Which?', config=config, base='rope', arms={'rope': {}, 'none': {'model.position': 'none'}}
  )
  arms, trained = plan_arms(study), []
  monkeypatch.setattr(runner, 'run_arm', lambda study, arm, *more: trained.append(arm.name))
  folder = store.arm_dir(tmp_path, 'rope')
  folder.mkdir(parents=True)
  with lock_workdir(folder):
    runner.run_study(study, arms, tmp_path)
  assert f'left to another process: --workdir={folder} is in use by process ' in capsys.readouterr().err
  assert trained == ['none'] and not store.read_arm(folder)
  runner.run_study(study, arms, tmp_path)  # the lock is free again
  assert trained == ['none', 'rope', 'none']


@pytest.mark.parametrize('flag', [['--jobs', '2'], ['--jobs=2']])
def test_each_process_has_its_slice_and_no_jobs(tmp_path, monkeypatch, flag):
  started = []

  class Process:
    def __init__(self, command, **_):
      started.append(command[3:])

    def wait(self):
      return 0

  monkeypatch.setattr(jobs.subprocess, 'Popen', Process)
  words = ['ablate', 'which.py', *flag, '--workdir=x']
  assert jobs.run_jobs(words, 2, tmp_path) == []
  assert started == [['ablate', 'which.py', '--workdir=x', f'--slice={i}/2'] for i in (0, 1)]
