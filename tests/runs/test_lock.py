"""Two processes never train in one directory, and a dead one leaves no lock behind."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from tests.paths import ROOT
from tfm.runs import train
from tfm.runs.lock import FILE, lock_workdir
from tfm.runs.run_dir import RunDir


HOLD = """
import pathlib, sys, time
from tfm.runs.lock import lock_workdir
with lock_workdir(pathlib.Path(sys.argv[1])):
  print('locked', flush=True)
  time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
  """Another process that holds the lock of tmp_path."""
  process = subprocess.Popen(
    [sys.executable, '-c', HOLD, str(tmp_path)],
    stdout=subprocess.PIPE,
    text=True,
    env=os.environ | dict(PYTHONPATH=str(ROOT)),
  )
  assert process.stdout.readline() == 'locked\n'
  yield process
  process.kill()
  process.wait(60)


@pytest.mark.slow
def test_a_second_run_is_rejected_and_a_killed_one_leaves_no_lock(holder, tiny, tmp_path):
  with pytest.raises(ValueError, match=f'is in use by process {holder.pid} on .*, since .*; wait for it'):
    train.train(tiny(), str(tmp_path))
  assert not (tmp_path / 'metrics.jsonl').exists()
  holder.send_signal(signal.SIGKILL)
  holder.wait(60)
  with lock_workdir(tmp_path):
    assert (tmp_path / FILE).read_text().startswith(f'process {os.getpid()} on ')
  train.train(tiny(), str(tmp_path))
  assert (tmp_path / 'metrics.jsonl').exists()


def test_a_file_system_without_locks_is_reported(tmp_path, monkeypatch, capsys):
  def flock(*_):
    raise OSError(38, 'Function not implemented')

  monkeypatch.setattr('fcntl.flock', flock)
  with lock_workdir(tmp_path):
    assert 'cannot be locked (Function not implemented)' in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_another_process_finished_meanwhile_is_not_begun_again(tiny, tmp_path):
  """The lock is free, but what the process found in the directory when it started is out of date."""
  prepared = train.prepare([RunDir.from_config(tiny(), 0, tmp_path)], {})
  train.train(tiny(), str(tmp_path))
  rows = (tmp_path / 'metrics.jsonl').read_text()
  with pytest.raises(ValueError, match='has gained or lost checkpoints .* run the command again$'):
    with contextlib.ExitStack() as stack:
      train.open_stores(prepared, stack)
  assert (tmp_path / 'metrics.jsonl').read_text() == rows
