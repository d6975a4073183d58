"""A job under the real Slurm: its controller, its daemon and its commands, on this machine alone."""

import getpass
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time

import pytest

from tfm.commands import cli
from tfm.training import metrics


PROGRAMS = 'munged', 'slurmctld', 'slurmd', 'sbatch', 'srun', 'scancel', 'scontrol'
CONF = """
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={daemon_port}
AuthType=auth/munge
# A requeued job waits until the credentials of its first run have expired.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def free_port():
  with socket.socket() as free:
    free.bind(('localhost', 0))
    return free.getsockname()[1]


@pytest.fixture
def slurm(tmp_path, monkeypatch):
  """A running Slurm of one node."""
  monkeypatch.setenv('PATH', f'{os.environ["PATH"]}:/usr/sbin')
  missing = [name for name in PROGRAMS if not shutil.which(name)]
  if missing or getpass.getuser() != 'root' or (os.cpu_count() or 1) < 2:
    pytest.skip(f'a Slurm of its own needs root, two cores and the programs {", ".join(missing or PROGRAMS)}')
  try:
    socket.getaddrinfo(socket.gethostname(), None)  # where processes look for process 0
  except OSError as error:
    pytest.skip(f'the name of this machine has no address: {error}')
  folder = pathlib.Path(f'/tmp/slurm-{os.getpid()}')  # a socket's path must be short
  for name in ('state', 'spool'):
    (folder / name).mkdir(parents=True)
  (folder / 'munge.key').write_bytes(os.urandom(1024))
  (folder / 'munge.key').chmod(0o400)
  text = CONF.format(
    host=socket.gethostname(), port=free_port(), daemon_port=free_port(), folder=folder, cpus=os.cpu_count()
  )
  (folder / 'slurm.conf').write_text(text)
  monkeypatch.setenv('SLURM_CONF', str(folder / 'slurm.conf'))
  paths = dict(socket='munge.socket', key_file='munge.key', pid_file='munged.pid', seed_file='munged.seed')
  munge_flags = [f'--{name.replace("_", "-")}={folder}/{path}' for name, path in paths.items()]
  daemons = []
  try:
    for words in (['munged', *munge_flags, '--force', '--foreground'], ['slurmctld', '-D'], ['slurmd', '-D']):
      with (folder / f'{words[0]}.out').open('w') as file:
        daemons.append(subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT))
      time.sleep(1)
    try:
      wait_until(lambda: 'idle' in run('sinfo', '--noheader'), 30, lambda: print_logs(folder))
    except AssertionError as error:  # of the machine, not of what is tested
      pytest.skip(f'no node of Slurm came up here: {error}')
    yield folder
  finally:
    for daemon in daemons[::-1]:
      daemon.terminate()
    for daemon in daemons:
      daemon.wait(30)
    shutil.rmtree(folder)


def run(*words):
  return subprocess.run(words, capture_output=True, text=True, timeout=60).stdout


def print_logs(folder):
  return '\n'.join(f'{path.name}: {path.read_text()[-2000:]}' for path in folder.glob('*.out'))


def wait_until(condition, seconds, describe):
  deadline = time.time() + seconds
  while not condition():
    assert time.time() < deadline, describe()
    time.sleep(0.1)


def install(folder, root, monkeypatch):
  """Puts a `tfm` on the PATH that is this checkout's."""
  (folder / 'bin').mkdir()
  program = folder / 'bin' / 'tfm'
  program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tfm "$@"\n')
  program.chmod(0o755)
  monkeypatch.setenv('PATH', f'{program.parent}:{os.environ["PATH"]}')
  monkeypatch.setenv('PYTHONPATH', str(root))
  monkeypatch.chdir(root)


@pytest.mark.slow
def test_a_job_saves_when_it_is_to_stop_is_requeued_and_ends_as_one_run(
  slurm, book, tmp_path, root, monkeypatch, capsys
):
  """The commands that `tfm launch slurm` prints, run as printed; SIGTERM comes as before a time limit."""
  (tmp_path / 'small.py').write_text(f"""
def get_config(arg=''):
  return dict(
    data=dict(source="text({str(book)!r})", length=32),
    model=dict(layers=2, width=32, heads=4),
    optimizer=dict(warmup=2),
    training=dict(steps=60, batch_size=8, log_every=1, evaluate_every=20, evaluation_batches=1))
""")
  install(tmp_path, root, monkeypatch)
  monkeypatch.setenv('XLA_FLAGS', f'{os.environ["XLA_FLAGS"]} --xla_force_host_platform_device_count=2')
  config, workdir = f'--config={tmp_path}/small.py', tmp_path / 'run'
  log = tmp_path / 'job.log'
  flags = '--nodes=1', '--ntasks-per-node=2', '--overcommit', f'--output={log}'
  assert cli.main(['launch', 'slurm', config, f'--workdir={workdir}', '--env=CPU_DEVICES=2', *flags]) == 0
  printed = capsys.readouterr().out
  job = re.search(r'Submitted batch job (\d+)', run('bash', '-c', printed))[1]

  def steps():
    return [row['step'] for row in metrics.read(workdir / 'metrics.jsonl') if row['split'] == 'train']

  def describe():
    return '\n'.join(
      [run('scontrol', 'show', 'job', job), log.read_text() if log.exists() else '', print_logs(slurm)]
    )

  wait_until(lambda: max(steps(), default=0) >= 23, 240, describe)
  run('scancel', '--batch', '--signal=TERM', job)
  wait_until(lambda: 'Restarts=1' in run('scontrol', 'show', 'job', job), 120, describe)
  saved = max(int(path.name) for path in (workdir / 'checkpoints').iterdir())
  assert 23 <= saved < 60 and max(steps()) == saved, describe()  # it stopped where it saved
  wait_until(lambda: 'JobState=COMPLETED' in run('scontrol', 'show', 'job', job), 240, describe)
  assert steps() == list(range(1, 61)), describe()
  assert 'devices: 2 processes' in (workdir / 'log.txt').read_text()


@pytest.mark.slow
def test_the_tasks_of_a_study_share_its_arms_and_a_job_reports(
  slurm, book, tmp_path, root, monkeypatch, capsys
):
  """Three arms over two tasks; the task with two of them is stopped while it trains, and requeued."""
  (tmp_path / 'study.py').write_text(f"""
from tfm.studies.study import Study

def get_study(arg=''):
  config = dict(
    data=dict(source="text({str(book)!r})", length=32),
    model=dict(layers=1, width=32, heads=4),
    optimizer=dict(warmup=2),
    training=dict(steps=300, batch_size=8, log_every=1, evaluate_every=50, evaluation_batches=1))
  positions = {{name: {{'model.position': name}} for name in ('rope', 'none', 'alibi')}}
  return Study(question='Which position?', config=config, base='rope', arms=positions, seeds=1)
""")
  install(tmp_path, root, monkeypatch)
  workdir = tmp_path / 'study'
  words = f'--study={tmp_path}/study.py', '--slices=2', f'--workdir={workdir}', '--env=CPU_DEVICES=1'
  assert cli.main(['launch', 'slurm', *words, f'--output={tmp_path}/%j.log', '--cpus-per-task=1']) == 0
  printed = run('bash', '-c', capsys.readouterr().out)
  [report] = re.findall(r'Submitted batch job (\d+)', printed)
  array = re.search(r'Dependency=afterany:(\d+)', run('scontrol', 'show', 'job', report))[1]

  def describe():
    logs = [f'{path.name}: {path.read_text()[-3000:]}' for path in tmp_path.glob('*.log')]
    return '\n'.join([run('squeue'), *logs, print_logs(slurm)])

  def state(job):
    return run('scontrol', 'show', 'job', job)

  first = workdir / 'arms' / 'rope' / 'seed0' / 'metrics.jsonl'
  wait_until(lambda: first.exists() and len(metrics.read(first)) > 20, 240, describe)
  run('scancel', '--batch', '--signal=TERM', f'{array}_0')
  wait_until(lambda: 'Restarts=1' in state(f'{array}_0'), 120, describe)
  assert 'Restarts=0' in state(f'{array}_1')
  wait_until(lambda: 'JobState=COMPLETED' in state(report), 300, describe)
  results = json.loads((workdir / 'results.json').read_text())
  assert len((workdir / 'report.html').read_text()) > 1000
  steps = [row['step'] for row in metrics.read(first) if row['split'] == 'train']
  assert steps == list(range(1, 301)), describe()
  for name in ('rope', 'none', 'alibi'):
    assert (
      name in json.dumps(results) and (workdir / 'arms' / name / 'seed0' / 'checkpoints' / '300').is_dir()
    )
