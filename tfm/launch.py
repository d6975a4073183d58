"""The commands that train a config on machines that one does not sit at: TPU VMs, Kubernetes through xpk, Slurm."""

import dataclasses
import pathlib
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence

from tfm.config import require

# What nothing but a person can mend; everything else is tried again.
REFUSED = 2
BUCKET = re.compile(r'gs://([\w.-]+)(/.*)?')
# Renames of folders, by which a checkpoint becomes whole, on a bucket that does not know folders.
GCSFUSE = 'gcsfuse --implicit-dirs --rename-dir-limit=1000000'


@dataclasses.dataclass(frozen=True)
class Job:
  """What is to be run, and where.

  Attributes:
    name: of the job, the TPU or the workload; words: of the `tfm train` command, the workdir left out.
    workdir: a folder that all machines see, or gs://BUCKET/….
    environment: variables; folder: that the machines run in, '' for the one they start in.
    options: of the place, by name, those of them that were given.
  """

  name: str
  words: Sequence[str]
  workdir: str
  environment: Mapping[str, str]
  folder: str
  options: Mapping[str, str]

  def command(self, workdir: str, *before: str) -> str:
    """The command of every process."""
    return shlex.join([*before, 'tfm', 'train', '--processes=auto', f'--workdir={workdir}', *self.words])

  def setting(self) -> list[str]:
    """Shell lines that come before it."""
    return [f'export {name}={shlex.quote(value)}' for name, value in self.environment.items()] + (
      [f'cd {shlex.quote(self.folder)}'] if self.folder else [])

  def needs(self, place: str, *names: str) -> None:
    """Refuses a job without some options."""
    for name in names:
      require(name in self.options, f'--{name} is missing; tfm launch {place} needs {", ".join(f"--{n}" for n in names)}')

  def flags(self, *names: str) -> list[str]:
    """Those of these options that were given, as flags."""
    return [f'--{name}={self.options[name]}' for name in names if name in self.options]


@dataclasses.dataclass(frozen=True)
class Step:
  """One command of the machine that launches.

  Attributes:
    words: its own; given: what it reads from its input; note: a comment for people.
  """

  words: tuple[str, ...]
  given: str = ''
  note: str = ''

  def __str__(self):
    said = f'# {self.note}\n' if self.note else ''
    return said + shlex.join(self.words) + (f" <<'END'\n{self.given}END" if self.given else '')


def again(command: str, after: str = '') -> str:
  """A shell script that runs a command until it is done or refused: whatever else ends it, it resumes.

  SIGTERM is handed on to the command, which saves, and then it is not run again.

  Args:
    after: lines for when it was asked to stop.
  """
  return f'''stopped=
trap 'stopped=1; kill -TERM "$run" 2>/dev/null' TERM
while :; do
  {command} &
  run=$!
  wait "$run"; status=$?
  while kill -0 "$run" 2>/dev/null; do wait "$run"; status=$?; done
  if [ -n "$stopped" ] || [ "$status" = 0 ] || [ "$status" = {REFUSED} ]; then break; fi
  echo "tfm launch: exit status $status; again in 10 seconds, from the last checkpoint" >&2
  sleep 10
done
{after}exit "$status"
'''


def slurm(job: Job) -> list[Step]:
  """An sbatch file: a process a task, which finds the others by what Slurm says; requeued when it is preempted."""
  job.needs('slurm', 'nodes')
  require(not BUCKET.fullmatch(job.workdir), f'--workdir={job.workdir} is a bucket; on Slurm name a folder that all nodes see')
  options = {'ntasks-per-node': '1', 'signal': 'B:TERM@120', 'open-mode': 'append', 'output': f'{job.name}-%j.log'} | dict(job.options)
  lines = [f'#SBATCH --{name}={value}' for name, value in {'job-name': job.name, **options}.items()]
  requeue = 'if [ -n "$stopped" ] && [ "$status" = 0 ]; then scontrol requeue "$SLURM_JOB_ID"; fi\n'
  text = '\n'.join(['#!/bin/bash', *lines, '#SBATCH --requeue', '', *job.setting(),
                    again(job.command(job.workdir, 'srun', '--kill-on-bad-exit=1'), requeue)])
  return [Step(('sbatch',), text)]


def tpu(job: Job) -> list[Step]:
  """The same command on every worker of a TPU VM pod slice, which goes on when the connection ends."""
  job.needs('tpu', 'zone')
  mount, workdir = [], job.workdir
  if found := BUCKET.fullmatch(job.workdir):
    bucket, path = found[1], found[2] or ''
    folder = f'buckets/{bucket}'
    mount = [f'mkdir -p ~/{folder}', f'mountpoint -q ~/{folder} || {GCSFUSE} {bucket} ~/{folder}']
    workdir = f'{folder}{path}'
  log = f'{job.name}.log'
  # The folder of the bucket lies in that of the user.
  train = job.command(workdir) if not mount else job.command('WORKDIR').replace('--workdir=WORKDIR', f'--workdir="$HOME"/{shlex.quote(workdir)}')
  script = '\n'.join([*mount, *job.setting(), again(train)])
  def ssh(command, note):
    return Step(('gcloud', 'compute', 'tpus', 'tpu-vm', 'ssh', job.name, *job.flags('zone', 'project'), '--worker=all',
                 f'--command={command}'), note=note)
  return [
    ssh(f'nohup bash -c {shlex.quote(script)} >> {log} 2>&1 < /dev/null &', 'train on every worker; it goes on without this connection'),
  ]


def watching(job: Job) -> list[Step]:
  """What to look at a TPU VM's job with, and what to stop it with: not run by --run."""
  def ssh(which, command, note):
    return Step(('gcloud', 'compute', 'tpus', 'tpu-vm', 'ssh', job.name, *job.flags('zone', 'project'), f'--worker={which}',
                 f'--command={command}'), note=note)
  return [ssh('0', f'tail -F {job.name}.log', 'what it says'),
          ssh('all', f'pkill -TERM -f {shlex.quote("^bash -c .*tfm train")}', 'save and stop')]


def gke(job: Job) -> list[Step]:
  """An xpk workload: a JobSet whose pods are all begun again when one is lost."""
  job.needs('gke', 'cluster', 'tpu-type', 'docker-image')
  where, steps, workdir = job.flags('cluster', 'zone', 'project'), [], job.workdir
  if found := BUCKET.fullmatch(job.workdir):
    point = f'/buckets/{found[1]}'
    workdir = f'{point}{found[2] or ""}'
    steps.append(Step(('xpk', 'storage', 'attach', found[1], *where, '--type=gcsfuse', f'--bucket={found[1]}', f'--mount-point={point}',
                       '--readonly=false', '--auto-mount=true'), note='once for a cluster: the bucket, as a folder of every workload'))
  script = '\n'.join([*job.setting(), again(job.command(workdir))])
  grace = job.options.get('termination-grace-period-seconds', '120')
  steps.append(Step((
    'xpk', 'workload', 'create', f'--workload={job.name}', *where, *job.flags('tpu-type', 'num-slices', 'docker-image'),
    f'--max-restarts={job.options.get("max-restarts", "100")}', f'--termination-grace-period-seconds={grace}',
    f'--command=bash -c {shlex.quote(script)}')))
  return steps


PLACES: dict[str, Callable[[Job], list[Step]]] = {'tpu': tpu, 'gke': gke, 'slurm': slurm}


def run(steps: Sequence[Step], has: Callable[[str], str | None]) -> None:
  """Runs the steps, one after another.

  Args:
    has: name of a program → its path, or None.

  Raises:
    ValueError: before anything is run, for a program that is not there; and if one fails.
  """
  for step in steps:
    require(has(step.words[0]) is not None, f'--run needs {step.words[0]}, which is not on the PATH; without --run its commands are '
                                            'printed, to be run where it is')
  for step in steps:
    done = subprocess.run(step.words, input=step.given or None, text=True)
    require(done.returncode == 0, f'{step.words[0]} ended with the status {done.returncode}')


def named(workdir: str) -> str:
  """A name for the job: letters, digits and dashes of the workdir's own."""
  return re.sub(r'[^a-z0-9]+', '-', pathlib.PurePosixPath(workdir).name.lower()).strip('-') or 'tfm'
