"""The loop that restarts a job, and the steps of `--run`, with fake programs."""

import os
import re
import shlex
import stat
import subprocess

import pytest

from tests.launch.command import tfm
from tfm.launch.job import Step, checkpoints_of_run, restart_loop, run_steps


# A fake gcloud whose TPU VM is a folder, from create to delete; training in the first VM loses the machine.
GCLOUD = """#!/bin/bash
echo "${@:3:2}" >> "$FAKE/calls"
case "$3 $4" in
  'queued-resources describe') cat "$FAKE/state" ;;
  'queued-resources create') mkdir "$FAKE/vm"; echo ACTIVE > "$FAKE/state" ;;
  'queued-resources delete') rm -r "$FAKE/vm" "$FAKE/state" ;;
  'tpu-vm ssh') cd "$FAKE/vm" && HOME=$FAKE/vm bash -c "$(sed '1s/^--command=//' <<< "${@: -1}")" ;;
esac
"""
PREEMPTED_ONCE = """#!/bin/bash
echo "$@" >> "$FAKE/trained"
[ $(wc -l < "$FAKE/trained") = 2 ] || { echo SUSPENDED > "$FAKE/state"; kill -9 $PPID; }
"""


def test_a_preempted_slice_is_created_again(capsys, tmp_path, root, monkeypatch):
  """Runs the printed loop with a fake gcloud that has one machine."""
  monkeypatch.chdir(root)
  text = tfm(
    capsys,
    'launch',
    'tpu',
    '--config=configs/lm.py',
    '--workdir=/nfs/lm',
    '--name=pod',
    '--zone=z',
    '--accelerator-type=v5litepod-16',
    '--runtime-version=r',
    '--setup=echo installed >> "$FAKE/setup"',
  )[1]
  programs = tmp_path / 'bin'
  programs.mkdir()
  for name, program in {
    'gcloud': GCLOUD,
    'tfm': PREEMPTED_ONCE,
    'sleep': '#!/bin/sh\nexec /bin/sleep 0.2\n',
  }.items():
    (programs / name).write_text(program)
    (programs / name).chmod(0o755)
  loop = re.match(r"# [^\n]*\nbash <<'END'\n(.*?)END\n\n", text, re.DOTALL)[1]
  done = subprocess.run(
    ['bash'],
    input=loop,
    text=True,
    timeout=60,
    env=dict(os.environ, PATH=f'{programs}:{os.environ["PATH"]}', FAKE=str(tmp_path)),
  )
  assert done.returncode == 0
  verbs = [line.split()[1] for line in (tmp_path / 'calls').read_text().splitlines() if 'queued' in line]
  assert [verb for verb in verbs if verb != 'describe'] == ['create', 'delete', 'create']
  assert (
    tmp_path / 'trained'
  ).read_text() == 2 * 'train --processes=auto --workdir=/nfs/lm --config=configs/lm.py\n'
  assert (tmp_path / 'setup').read_text() == 'installed\ninstalled\n'


def run_loop(tmp_path, program, sleep='#!/bin/sh\n'):
  """Runs the restart loop of a command; returns its exit status and what it printed."""
  for name, text in {'work': program, 'sleep': sleep}.items():
    (tmp_path / name).write_text(text)
    (tmp_path / name).chmod(0o755)
  env = dict(os.environ, PATH=f'{tmp_path}:{os.environ["PATH"]}', RUN=str(tmp_path / 'run'))
  words = ['bash', '-c', restart_loop('work', checkpoints_of_run(shlex.quote(str(tmp_path / 'run'))))]
  done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
  return done.returncode, done.stdout, done.stderr


def test_a_command_that_always_fails_is_given_up(tmp_path):
  status, out, err = run_loop(tmp_path, '#!/bin/sh\necho tried\nexit 9\n')
  assert status == 9 and out == 5 * 'tried\n'
  assert err.splitlines()[-1] == 'tfm launch: 5 failures in a row without a new checkpoint; giving up'


def test_a_command_that_saves_before_it_fails_is_run_on(tmp_path):
  """Twelve failures, each after a new checkpoint; then a success."""
  program = '#!/bin/sh\nmkdir -p "$RUN/checkpoints/$$"\n[ $(ls "$RUN/checkpoints" | wc -l) = 13 ]\n'
  status, _, err = run_loop(tmp_path, program)
  assert status == 0 and err.count('restarting from the last checkpoint') == 12


def test_a_stop_between_two_tries_ends_the_loop_as_a_saved_stop(tmp_path):
  """SIGTERM comes while the loop waits after a failure."""
  stop = '#!/bin/sh\nkill -TERM "$PPID"\n'
  status, out, _ = run_loop(tmp_path, '#!/bin/sh\necho tried\nexit 9\n', sleep=stop)
  assert (status, out) == (0, 'tried\n')


def test_invalid_input_is_not_tried_again(tmp_path):
  assert run_loop(tmp_path, '#!/bin/sh\necho tried\nexit 2\n')[:2] == (2, 'tried\n')


def test_run_runs_the_steps_in_order(tmp_path):
  """Runs a program that records its arguments and standard input."""
  program = tmp_path / 'record'
  program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls; cat >> {tmp_path}/calls; [ "$1" != fail ]\n')
  program.chmod(program.stat().st_mode | stat.S_IEXEC)
  run_steps([Step((str(program), 'one'), 'text\n'), Step((str(program), 'two words'))], lambda name: name)
  assert (tmp_path / 'calls').read_text() == 'one\ntext\ntwo words\n'
  with pytest.raises(ValueError, match='failed with exit status 1'):
    run_steps([Step((str(program), 'fail'))], lambda name: name)
