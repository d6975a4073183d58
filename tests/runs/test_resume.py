"""A resume is the same run: real processes, really killed."""

import json
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from tfm.runs import load as runs
from tfm.training import checkpoint
from tfm.training.metrics import read


STEPS, EVERY = 60, 20


@pytest.fixture(scope='module')
def command(book, tmp_path_factory):
  """The command line of a small run, but for its --workdir."""
  config = tmp_path_factory.mktemp('config') / 'small.py'
  config.write_text(f"""
from ml_collections import ConfigDict

def get_config(arg=''):
  config = ConfigDict()
  config.data = dict(source="text({str(book)!r})", length=64, packing='first_fit')
  config.model = dict(layers=2, width=64, heads=4, dropout=dict(residual=0.1))
  config.training = dict(steps={STEPS}, batch_size=8, evaluate_every={EVERY}, evaluation_batches=1)
  config.training.log_every = 1
  return config
""")
  return [sys.executable, '-m', 'tfm', 'train', f'--config={config}']


def start(command, workdir, *more, devices=1):
  # Of two flags of a name the last counts.
  env = dict(
    os.environ, XLA_FLAGS=f'{os.environ["XLA_FLAGS"]} --xla_force_host_platform_device_count={devices}'
  )
  return subprocess.Popen(
    [*command, f'--workdir={workdir}', *more], env=env, text=True, stderr=subprocess.PIPE
  )


def finish(command, workdir, *more, devices=1):
  process = start(command, workdir, *more, devices=devices)
  _, printed = process.communicate(timeout=300)
  assert process.returncode == 0, printed
  return printed


def kill_when(process, happened, number=signal.SIGKILL):
  """Sends a signal as soon as `happened()`; fails if the process ends before."""
  deadline = time.time() + 300
  while not happened():
    if process.poll() is not None or time.time() > deadline:
      process.kill()  # what it has written so far
      pytest.fail(process.communicate(timeout=120)[1])
    time.sleep(0.001)
  process.send_signal(number)
  return process.communicate(timeout=120)[1], process.returncode


def reached(workdir, step):
  """Whether a training step has been logged."""
  path = workdir / 'metrics.jsonl'
  return lambda: path.exists() and any(r['step'] >= step and r['split'] == 'train' for r in read(path))


def everything(workdir):
  """Parameters, optimizer state, step and key of the last checkpoint, as numpy."""
  checkpoints = checkpoint.Checkpoints(workdir)
  tree = checkpoints.manager.restore(checkpoints.find_step('last'))
  checkpoints.close()
  return jax.tree_util.tree_leaves_with_path((tree['params'], tree['rest'])), tree['run']


def history(workdir):
  """Every logged number that is not a timing."""
  timing = ('tokens_per_second', 'goodput', 'step_seconds', 'data_seconds', 'memory_bytes')
  return [{k: v for k, v in row.items() if k not in timing} for row in read(workdir / 'metrics.jsonl')]


@pytest.fixture(scope='module')
def unbroken(command, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('unbroken')
  finish(command, workdir)
  return workdir


def assert_same_run(workdir, unbroken):
  (leaves, run), (expected, wanted_run) = everything(workdir), everything(unbroken)
  for (path, x), (wanted_path, y) in zip(leaves, expected, strict=True):
    assert path == wanted_path
    np.testing.assert_array_equal(x, y, err_msg=str(path))
  assert run == wanted_run
  assert history(workdir) == history(unbroken)


@pytest.mark.slow
def test_killed_anywhere_it_ends_as_the_unbroken_run(command, unbroken, tmp_path):
  """Killed before the first checkpoint, between two, and in the middle of a save."""
  kill_when(start(command, tmp_path), reached(tmp_path, 3))
  kill_when(start(command, tmp_path), reached(tmp_path, EVERY + 5))
  saving = tmp_path / 'checkpoints' / f'{2 * EVERY}.orbax-checkpoint-tmp'
  kill_when(start(command, tmp_path), saving.exists)
  assert saving.exists() and not (tmp_path / 'checkpoints' / str(2 * EVERY)).exists()  # it was in mid-save
  finish(command, tmp_path)
  assert_same_run(tmp_path, unbroken)
  assert [row['batch'] for row in read(tmp_path / 'metrics.jsonl') if row['split'] == 'train']
  assert len({row['batch'] for row in read(unbroken / 'metrics.jsonl') if row['split'] == 'train'}) == STEPS


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_saves_and_exits_cleanly(command, unbroken, tmp_path, number):
  printed, status = kill_when(start(command, tmp_path), reached(tmp_path, EVERY + 3), number)
  assert status == 0, printed
  assert 'run the same command to resume' in printed
  checkpoints = checkpoint.Checkpoints(tmp_path)
  stopped = checkpoints.latest_step()
  checkpoints.close()
  assert EVERY + 3 <= stopped < STEPS
  finish(command, tmp_path)
  assert_same_run(tmp_path, unbroken)


@pytest.mark.slow
def test_another_mesh_goes_on_with_equal_losses(command, unbroken, tmp_path):
  kill_when(
    start(command, tmp_path, '--config.mesh.fsdp=2', devices=4), reached(tmp_path, EVERY + 3), signal.SIGTERM
  )
  finish(command, tmp_path, '--config.mesh.tensor=2', devices=2)
  losses, expected = ([r['loss'] for r in read(d / 'metrics.jsonl')] for d in (tmp_path, unbroken))
  np.testing.assert_allclose(losses, expected, rtol=1e-4)


@pytest.mark.slow
def test_a_finished_run_run_again_changes_nothing(command, unbroken):
  before = history(unbroken)
  finish(command, unbroken)
  assert history(unbroken) == before


@pytest.mark.slow
def test_a_different_config_is_refused_with_the_difference(command, unbroken):
  process = start(
    command,
    unbroken,
    '--config.model.layers=3',
    '--config.optimizer.learning_rate=0.5',
    '--config.training.log_every=7',
  )
  _, printed = process.communicate(timeout=120)
  assert process.returncode == 2
  assert 'model.layers: 2 → 3' in printed and 'optimizer.learning_rate: 0.001 → 0.5' in printed
  assert 'log_every' not in printed and 'Traceback' not in printed
  assert json.loads((unbroken / 'config.json').read_text())['model']['layers'] == 2


@pytest.mark.slow
def test_last_best_and_numbered_steps(unbroken):
  rows = {r['step']: r['loss'] for r in read(unbroken / 'metrics.jsonl') if r['split'] == 'validation'}
  assert runs.load(unbroken, 'last').step == STEPS
  assert runs.load(unbroken, 'best').step == min(rows, key=rows.get)
  assert runs.load(unbroken, str(STEPS - EVERY)).step == STEPS - EVERY
  with pytest.raises(ValueError, match=f"step='7' does not exist.*{STEPS}"):
    runs.load(unbroken, '7')


@pytest.mark.slow
def test_a_save_that_fails_is_one_sentence_with_a_status_that_launchers_retry(command, tmp_path):
  """A limit on the size of files stands for a full disk, which needs a file system of its own."""
  limited = [sys.executable, '-c', LIMITED, *command[1:]]
  process = start(limited, tmp_path / 'run')
  _, printed = process.communicate(timeout=300)
  assert process.returncode == 1, printed
  sentence = printed.strip().splitlines()[-1]
  assert sentence.startswith(f'tfm train: {tmp_path}/run/checkpoints cannot be written: ')
  assert sentence.endswith('run the command again: it resumes from the last checkpoint')


# Files of parameters and optimizer states are larger than the limit; all others are smaller.
LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
os.environ['JAX_ENABLE_COMPILATION_CACHE'] = 'false'
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
