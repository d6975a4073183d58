"""Several processes of one study."""

import os
import subprocess
import sys
import types

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


def test_slices_share_the_work_and_every_arm_is_in_one():
  """Of small and large arms in turns, every second would be all large ones."""
  flops = dict(small=1.0, large=8.0, other_small=2.0, other_large=9.0, middle=4.0)
  arms = {name: types.SimpleNamespace(name=name, flops=of_arm, tokens=10) for name, of_arm in flops.items()}
  shares = [jobs.slice_arms(arms, f'{i}/2') for i in (0, 1)]
  assert [[*share] for share in shares] == [['small', 'other_small', 'other_large'], ['large', 'middle']]
  alone = [jobs.slice_arms(arms, f'{i}/7') for i in range(7)]
  assert sorted(name for share in alone for name in share) == sorted(arms) and max(map(len, alone)) == 1
  assert jobs.slice_arms(arms, None) == arms


@pytest.mark.parametrize('flag', [['--jobs', '2'], ['--jobs=2']])
def test_each_process_has_its_slice_and_no_jobs(tmp_path, monkeypatch, flag):
  started, cores = [], []

  class Process:
    def __init__(self, command, **_):
      started.append(command[3:])
      cores.append(os.sched_getaffinity(0) if hasattr(os, 'sched_getaffinity') else set())

    def wait(self):
      return 0

  monkeypatch.setattr(jobs.subprocess, 'Popen', Process)
  words = ['ablate', 'which.py', *flag, '--workdir=x']
  assert jobs.run_jobs(words, 2, tmp_path) == []
  assert started == [['ablate', 'which.py', '--workdir=x', f'--slice={i}/2'] for i in (0, 1)]
  assert cores == jobs.share_cores(2)


@pytest.mark.parametrize(('before', 'tunables'), [(None, jobs.HUGE_PAGES), ('glibc.malloc.perturb=1',) * 2])
def test_processes_have_huge_pages_unless_the_environment_says_otherwise(
  tmp_path, monkeypatch, before, tunables
):
  given = []

  class Process:
    def __init__(self, command, env, **_):
      given.append(env['GLIBC_TUNABLES'])

    def wait(self):
      return 0

  monkeypatch.setattr(jobs.subprocess, 'Popen', Process)
  monkeypatch.delenv('GLIBC_TUNABLES', raising=False)
  if before:
    monkeypatch.setenv('GLIBC_TUNABLES', before)
  assert jobs.run_jobs(['ablate', 'which.py', '--jobs=2'], 2, tmp_path) == []
  assert given == [tunables] * 2


@pytest.mark.parametrize(
  ('cores', 'count', 'shares'),
  [
    ({0, 1}, 2, [{0}, {1}]),
    ({4, 5, 6, 7, 9}, 2, [{4, 5}, {6, 7, 9}]),
    ({0, 1, 2, 3}, 3, [{0}, {1}, {2, 3}]),
    ({0, 1}, 3, [{0, 1}] * 3),
  ],
)
def test_processes_share_the_cores(monkeypatch, cores, count, shares):
  monkeypatch.setattr(jobs.os, 'sched_getaffinity', lambda _: cores, raising=False)
  assert jobs.share_cores(count) == shares
  monkeypatch.delattr(jobs.os, 'sched_getaffinity')
  assert jobs.share_cores(count) == [set()] * count


@pytest.mark.skipif(not hasattr(os, 'sched_setaffinity'), reason='needs CPU affinity, which macOS has not')
def test_a_process_runs_on_its_share_and_its_parent_on_all_cores():
  before = os.sched_getaffinity(0)
  report = [sys.executable, '-c', 'import os; print(*os.sched_getaffinity(0))']
  for core in before:
    with jobs.pinned_to({core}):
      assert subprocess.run(report, capture_output=True, text=True).stdout.split() == [str(core)]
    assert os.sched_getaffinity(0) == before
  with jobs.pinned_to(set()):
    assert os.sched_getaffinity(0) == before
