"""Each command that reads a run divides it among real processes, on loopback, and answers as one process."""

import base64
import json
import os
import re
import socket
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.commands.test_import import GPT2, write_tokenizer
from tfm.commands import cli
from tfm.evaluation.attention_page import LEVELS
from tfm.runs.train import train
from tfm.training.metrics import read


# Gathered parts are added in another order than those of one device.
ROUNDING = 1e-5

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def workdir(tiny, tmp_path_factory):
  """A run of one process, in a published family."""
  folder = tmp_path_factory.mktemp('runs') / 'run'
  train(tiny(**GPT2), str(folder))
  return folder


@pytest.fixture
def run_together():
  """Runs a command in `count` processes of two devices each, which must succeed; returns what each prints."""

  def run(count, *words):
    with socket.socket() as free:
      free.bind(('localhost', 0))
      port = free.getsockname()[1]
    env = dict(os.environ, XLA_FLAGS=f'{os.environ["XLA_FLAGS"]} --xla_force_host_platform_device_count=2')
    started = [
      subprocess.Popen(
        [sys.executable, '-m', 'tfm', *words, f'--processes={count}', f'--process={i}']
        + [f'--coordinator=localhost:{port}'],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
      )
      for i in range(count)
    ]
    printed = [process.communicate(timeout=300) for process in started]
    assert all(process.returncode == 0 for process in started), printed
    return [out for out, _ in printed]

  return run


def run_alone(capsys, *words):
  capsys.readouterr()
  assert cli.main(words) == 0
  return capsys.readouterr().out


@pytest.mark.parametrize('mesh', [{'fsdp': -1}, {'fsdp': 2, 'tensor': 2}], ids=['fsdp', 'fsdp and tensor'])
def test_evaluate(workdir, run_together, capsys, mesh):
  command = 'evaluate', f'--workdir={workdir}', '--split=test'
  flags = (f'--config.mesh.{axis}={size}' for axis, size in (dict(data=1) | mesh).items())
  first, second = run_together(2, *command, *flags)
  assert '{' not in second  # the first one prints for all, after lines of JAX's libraries
  together, alone = json.loads(first[first.index('{') :]), json.loads(run_alone(capsys, *command))
  assert together.keys() == alone.keys() and together['tokens'] == alone['tokens'] > 0
  assert together['loss'] == pytest.approx(alone['loss'], rel=ROUNDING)


def test_evaluate_lengths(workdir, run_together, capsys):
  command = 'evaluate', f'--workdir={workdir}', '--lengths=8,16', '--targets=256'
  run_together(2, *command, '--config.mesh.data=1', '--config.mesh.fsdp=-1')
  together = json.loads((workdir / 'length.json').read_text())['records']
  run_alone(capsys, *command)
  alone = json.loads((workdir / 'length.json').read_text())['records']
  assert len(together) == len(alone) == 2
  for ours, theirs in zip(together, alone):
    assert ours['tokens'] == theirs['tokens'] and ours['loss'] == pytest.approx(theirs['loss'], rel=ROUNDING)


@pytest.mark.parametrize(
  'flags', [('--temperature=0',), ('--temperature=1', '--num_samples=3'), ('--beams=3',)]
)
def test_generate(workdir, run_together, capsys, tmp_path, flags):
  command = 'generate', f'--workdir={workdir}', '--prompt=Now is', '--max_tokens=12', *flags
  together, alone = tmp_path / 'together', tmp_path / 'alone'
  run_together(2, *command, '--config.mesh.data=1', '--config.mesh.fsdp=-1', f'--to={together}')
  run_alone(capsys, *command, f'--to={alone}')
  ours, theirs = ([json.loads(line) for line in file.read_text().splitlines()] for file in (together, alone))
  assert [row['text'] for row in ours] == [row['text'] for row in theirs] and len(ours[0]['text']) > 6


def test_attend(workdir, run_together, capsys, tmp_path):
  command = 'attend', f'--workdir={workdir}', '--input=Now is better'
  mesh = '--config.mesh.data=1', '--config.mesh.fsdp=-1'
  run_together(2, *command, *mesh, f'--to={tmp_path / "two"}')
  run_alone(capsys, *command, f'--to={tmp_path / "one"}')
  assert sorted(path.name for path in (tmp_path / 'two').iterdir()) == ['decoder.png', 'index.html']
  ours, theirs = (read_weights(tmp_path / name / 'index.html') for name in ('two', 'one'))
  np.testing.assert_allclose(ours, theirs, atol=ROUNDING + 1 / LEVELS)
  assert len(ours) > 100 and ours.std() > 0.1


def read_weights(page):
  """The attention weights in a page of `tfm attend`."""
  data = re.search(r'id="data">(.*?)</script>', page.read_text(encoding='utf-8'), re.DOTALL)[1]
  [kind] = json.loads(data)['kinds']
  return np.frombuffer(base64.b64decode(kind['weights']), '<u2') / LEVELS


def test_export_and_import(workdir, run_together, capsys, tmp_path):
  """Out of two processes, into two processes, and out of one again: the same tensors."""
  mesh = '--config.mesh.data=1', '--config.mesh.fsdp=-1'
  together, alone, again = (tmp_path / name for name in ('together', 'alone', 'again'))
  run_together(2, 'export', f'--workdir={workdir}', '--family=gpt2', f'--to={together}', *mesh)
  run_alone(capsys, 'export', f'--workdir={workdir}', '--family=gpt2', f'--to={alone}')
  assert_same_tensors(together, alone)
  write_tokenizer(together)
  run_together(2, 'import', f'--from={together}', f'--workdir={tmp_path / "imported"}', *mesh)
  run_alone(capsys, 'export', f'--workdir={tmp_path / "imported"}', f'--to={again}')
  assert_same_tensors(again, alone)


def test_init_from(workdir, run_together, tmp_path):
  """Two processes start from the parameters of a run of one."""
  config = json.loads((workdir / 'config.json').read_text())
  (tmp_path / 'config.py').write_text(
    f'def get_config(arg=""):\n  return {config | dict(init_from=str(workdir))!r}\n'
  )
  run_together(
    2,
    'train',
    f'--config={tmp_path / "config.py"}',
    f'--workdir={tmp_path / "run"}',
    '--config.mesh.data=1',
    '--config.mesh.fsdp=-1',
    '--config.optimizer.learning_rate=1e-9',
  )
  (first, *_), (*_, last) = (
    [row for row in read(folder / 'metrics.jsonl') if row['split'] == 'validation']
    for folder in (tmp_path / 'run', workdir)
  )
  assert first['loss'] == pytest.approx(last['loss'], rel=ROUNDING)


def assert_same_tensors(one, other):
  (ours, theirs) = (load_file(folder / 'model.safetensors') for folder in (one, other))
  assert ours.keys() == theirs.keys()
  for name in ours:
    np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
