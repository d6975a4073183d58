"""The Slurm file under a fake Slurm, with two tasks that train on loopback."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.launch.command import tfm
from tfm.training import metrics


# Slurm's part for a batch file on one machine: two tasks, each with its number. As the real one (src/srun/
# signals.c of Slurm 22.05: launch_fwd_signal with SIGKILL), srun answers a SIGTERM by killing its tasks.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
echo step >> "$FAKE/steps"
trap 'kill -KILL "${tasks[@]}" 2>/dev/null' TERM
for task in 0 1; do
  export SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_NTASKS=2 SLURM_STEP_NUM_NODES=1
  export SLURM_STEP_NODELIST=localhost
  "$@" 2> "$FAKE/task$task" &
  tasks[task]=$!
done
echo "${tasks[@]}" > "$FAKE/tasks"
status=0
for task in "${tasks[@]}"; do
  wait "$task"; one=$?
  while kill -0 "$task" 2>/dev/null; do wait "$task"; one=$?; done
  [ $one = 0 ] || status=$one
done
exit $status
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch, book, root):
  """Runs a batch file under a fake Slurm; returns its process."""
  programs = tmp_path / 'bin'
  programs.mkdir()
  for name, text in {
    'srun': SRUN,
    'scancel': '#!/bin/sh\nkill "$(echo "$1" | sed s/--signal=/-/)" $(cat "$FAKE/tasks")\n',
    'scontrol': '#!/bin/sh\necho "$@" >> "$FAKE/requeued"\n',
    'tfm': f'#!/bin/sh\nexec {sys.executable} -m tfm "$@"\n',
  }.items():
    (programs / name).write_text(text)
    (programs / name).chmod(0o755)
  config = tmp_path / 'small.py'
  config.write_text(f"""
from ml_collections import ConfigDict

def get_config(arg=''):
  return ConfigDict(dict(
    data=dict(source="text({str(book)!r})", length=32),
    model=dict(layers=2, width=32, heads=4),
    optimizer=dict(warmup=2),
    training=dict(steps=40, batch_size=8, log_every=1, evaluate_every=10, evaluation_batches=1)))
""")
  job = 90_000 + os.getpid() % 4096  # the port of the coordinator follows from it
  env = dict(
    os.environ,
    PATH=f'{programs}:{os.environ["PATH"]}',
    FAKE=str(tmp_path),
    SLURM_JOB_ID=str(job),
    PYTHONPATH=f'{root}:{os.environ.get("PYTHONPATH", "")}',
    XLA_FLAGS=f'{os.environ["XLA_FLAGS"]} --xla_force_host_platform_device_count=2',
  )

  def submit(capsys):
    monkeypatch.chdir(root)
    status, out, err = tfm(
      capsys, 'launch', 'slurm', f'--config={config}', f'--workdir={tmp_path}/run', '--nodes=2'
    )
    assert status == 0, err
    text = re.fullmatch(r"sbatch <<'END'\n(.*)END\n\n", out, re.DOTALL)[1]
    (tmp_path / 'job.sh').write_text(text)
    return subprocess.Popen(['bash', tmp_path / 'job.sh'], env=env, text=True, stderr=subprocess.PIPE)

  return submit


def rows(tmp_path):
  return [row for row in metrics.read(tmp_path / 'run' / 'metrics.jsonl') if row['split'] == 'train']


@pytest.mark.slow
def test_slurm_job_resumes_after_a_lost_process_and_is_requeued_after_preemption(cluster, capsys, tmp_path):
  def wait_for(step, job):
    deadline = time.time() + 300
    while not any(row['step'] >= step for row in rows(tmp_path)):
      assert job.poll() is None and time.time() < deadline, [
        path.read_text() for path in tmp_path.glob('task*')
      ]
      time.sleep(0.01)

  def tasks():
    pids = subprocess.run(['pgrep', '-f', f'{tmp_path}/run'], capture_output=True, text=True).stdout.split()
    return [
      int(pid)
      for pid in pids
      if b'--processes=auto' in pathlib.Path(f'/proc/{pid}/cmdline').read_bytes()
      and b'-m\0tfm' in pathlib.Path(f'/proc/{pid}/cmdline').read_bytes()
    ]

  job = cluster(capsys)
  wait_for(12, job)
  os.kill(tasks()[1], signal.SIGKILL)  # a machine is lost
  wait_for(22, job)
  assert (tmp_path / 'steps').read_text() == 'step\nstep\n'
  job.send_signal(signal.SIGTERM)  # the job is preempted
  _, err = job.communicate(timeout=120)
  assert job.returncode == 0 and 'restarting from the last checkpoint' in err, err
  assert re.fullmatch(r'requeue \d+\n', (tmp_path / 'requeued').read_text())
  reached = rows(tmp_path)[-1]['step']
  assert reached < 40 and (tmp_path / 'run' / 'checkpoints' / str(reached)).is_dir()
  job = cluster(capsys)  # the requeued job
  _, err = job.communicate(timeout=300)
  assert job.returncode == 0, err
  assert [row['step'] for row in rows(tmp_path)] == list(range(1, 41))
  assert 'devices: 2 processes, 4 × cpu' in (tmp_path / 'run' / 'log.txt').read_text()
  seconds = json.loads((tmp_path / 'run' / 'goodput.json').read_text())['seconds']
  assert seconds['lost'] > 0 and seconds['productive'] > 0
