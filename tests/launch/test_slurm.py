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

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.commands.test_import import GPT2
from tests.runs.test_processes import OTHER_DEVICES, TAKING_TURNS, assert_same_run
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
# A node may say that it has more cores than it has.
SlurmdParameters=config_overrides
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
    host=socket.gethostname(),
    port=free_port(),
    daemon_port=free_port(),
    folder=folder,
    cpus=max(4, os.cpu_count()),
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


def install(folder, root, monkeypatch, before=''):
  """Puts a `tfm` on the PATH that is this checkout's; it runs the code `before` first."""
  (folder / 'bin').mkdir()
  program = folder / 'bin' / 'tfm'
  code = f'{before}\nimport sys\nfrom tfm.commands import cli\nsys.exit(cli.main(sys.argv[1:]))\n'
  (folder / 'main.py').write_text(code)
  program.write_text(f'#!/bin/sh\nexec {sys.executable} {folder}/main.py "$@"\n')
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
def test_tasks_of_tiles_are_requeued_resumed_by_fewer_evaluated_and_exported(
  slurm, book, tmp_path, root, monkeypatch, capsys
):
  """Four tasks, whose devices take turns in the mesh as those of tiles of a torus do, stopped twice by Slurm
  and requeued; two train on, four evaluate, two export: all as one process that nothing stops."""
  config = dict(
    data=dict(source=f'text({str(book)!r})', length=32),
    model=dict(layers=2, width=32, heads=4, **{name.removeprefix('model.'): x for name, x in GPT2.items()}),
    optimizer=dict(warmup=2),
    mesh=dict(fsdp=2),
    training=dict(steps=120, batch_size=8, log_every=1, evaluate_every=40, evaluation_batches=2),
  )
  (tmp_path / 'small.py').write_text(f'def get_config(arg=""):\n  return {config!r}\n')
  install(tmp_path, root, monkeypatch, TAKING_TURNS)
  monkeypatch.setenv('XLA_FLAGS', f'{os.environ["XLA_FLAGS"]} --xla_force_host_platform_device_count=2')
  workdir, log = tmp_path / 'run', tmp_path / 'job.log'

  def submit(tasks):
    flags = '--nodes=1', f'--ntasks-per-node={tasks}', '--overcommit', f'--output={log}'
    words = f'--config={tmp_path}/small.py', f'--workdir={workdir}', '--env=CPU_DEVICES=2', *flags
    capsys.readouterr()
    assert cli.main(['launch', 'slurm', *words]) == 0
    return re.search(r'Submitted batch job (\d+)', run('bash', '-c', capsys.readouterr().out))[1]

  def describe():
    logs = log.read_text() if log.exists() else ''
    return '\n'.join([run('scontrol', 'show', 'job', job), logs, print_logs(slurm)])

  def reached(step):
    return lambda: any(row['step'] >= step for row in metrics.read(workdir / 'metrics.jsonl'))

  def run_tasks(count, *words):
    capsys.readouterr()
    srun = (
      'srun',
      f'--ntasks={count}',
      '--overcommit',
      'tfm',
      *words,
      '--processes=auto',
      f'--workdir={workdir}',
    )
    done = subprocess.run(srun, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout

  job = submit(tasks=4)
  for restarts, step in ((1, 20), (2, 60)):
    wait_until(reached(step), 240, describe)
    run('scancel', '--batch', '--signal=TERM', job)
    wait_until(lambda: f'Restarts={restarts}' in run('scontrol', 'show', 'job', job), 120, describe)
    saved = max(int(path.name) for path in (workdir / 'checkpoints').iterdir())
    assert step <= saved < 120, describe()
  run('scancel', job)
  job = submit(tasks=2)
  wait_until(lambda: 'JobState=COMPLETED' in run('scontrol', 'show', 'job', job), 240, describe)
  text = (workdir / 'log.txt').read_text()
  assert 'devices: 4 processes' in text and 'devices: 2 processes' in text
  evaluated = run_tasks(4, 'evaluate', '--split=test')
  run_tasks(2, 'export', '--family=gpt2', f'--to={tmp_path}/exported')

  unbroken = tmp_path / 'unbroken'
  assert cli.main(['train', f'--config={tmp_path}/small.py', f'--workdir={unbroken}']) == 0
  assert_same_run(workdir, unbroken, OTHER_DEVICES)
  capsys.readouterr()
  assert cli.main(['evaluate', '--split=test', f'--workdir={unbroken}']) == 0
  ours, theirs = (json.loads(out[out.index('{') :])['loss'] for out in (evaluated, capsys.readouterr().out))
  assert ours == pytest.approx(theirs, rel=OTHER_DEVICES)
  assert cli.main(['export', '--family=gpt2', f'--to={tmp_path}/expected', f'--workdir={unbroken}']) == 0
  ours, theirs = (load_file(tmp_path / name / 'model.safetensors') for name in ('exported', 'expected'))
  assert ours.keys() == theirs.keys()
  for name in ours:
    np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-3, err_msg=name)


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
