"""The commands that train a config on machines that one does not sit at: TPU VMs, Kubernetes through xpk, Slurm."""

import dataclasses
import pathlib
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence

from tfm.errors import require


# What nothing but a person can mend; everything else is tried again.
REFUSED = 2
BUCKET = re.compile(r'gs://([\w.-]+)(/.*)?')
# Renames of folders, by which a checkpoint becomes whole, on a bucket that does not know folders.
GCSFUSE = 'gcsfuse --implicit-dirs --rename-dir-limit=1000000'
# What says how a TPU VM is to be created; without any of these it is there.
CREATED = 'accelerator-type', 'runtime-version', 'spot', 'reserved'


@dataclasses.dataclass(frozen=True)
class Job:
  """What is to be run, and where.

  Attributes:
    name: of the job, the TPU or the workload; words: of the `tfm train` command, the workdir left out.
    workdir: a folder that all machines see, or gs://BUCKET/….
    environment: variables; folder: that the machines run in, '' for the one they start in.
    options: of the place, by name, those of them that were given; '' is of one without a value.
    setup: a shell command that comes before, '' for none.
  """

  name: str
  words: Sequence[str]
  workdir: str
  environment: Mapping[str, str]
  folder: str
  options: Mapping[str, str]
  setup: str = ''

  def command(self, workdir: str, *before: str) -> str:
    """The command of every process."""
    return shlex.join([*before, 'tfm', 'train', '--processes=auto', f'--workdir={workdir}', *self.words])

  def setting(self) -> list[str]:
    """Shell lines that come before it."""
    return (
      [f'export {name}={shlex.quote(value)}' for name, value in self.environment.items()]
      + ([self.setup] if self.setup else [])
      + ([f'cd {shlex.quote(self.folder)}'] if self.folder else [])
    )

  def needs(self, place: str, *names: str) -> None:
    """Refuses a job without some options."""
    for name in names:
      require(
        bool(self.options.get(name)),
        f'--{name} is missing; tfm launch {place} needs {", ".join(f"--{n}" for n in names)}',
      )

  def flags(self, *names: str) -> list[str]:
    """Those of these options that were given, as flags."""
    return [flag(name, self.options[name]) for name in names if name in self.options]


def flag(name: str, value: str) -> str:
  """`--name=value`, or `--name` of one without a value."""
  return f'--{name}={value}' if value else f'--{name}'


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
  return f"""stopped=
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
"""


def slurm(job: Job) -> list[Step]:
  """An sbatch file: a process a task, which finds the others by what Slurm says; requeued when it is preempted."""
  job.needs('slurm', 'nodes')
  require(
    not BUCKET.fullmatch(job.workdir),
    f'--workdir={job.workdir} is a bucket; on Slurm name a folder that all nodes see',
  )
  options = {
    'ntasks-per-node': '1',
    'signal': 'B:TERM@120',
    'open-mode': 'append',
    'output': f'{job.name}-%j.log',
  } | dict(job.options)
  require(
    re.fullmatch(r'B:(SIG)?TERM(@\d+)?', options['signal']) is not None,
    f'--signal={options["signal"]} is not what the script saves at; B:TERM@SECONDS is, so many before the time limit',
  )
  lines = [f'#SBATCH {flag(name, value)}' for name, value in {'job-name': job.name, **options}.items()]
  requeue = 'if [ -n "$stopped" ] && [ "$status" = 0 ]; then scontrol requeue "$SLURM_JOB_ID"; fi\n'
  text = '\n'.join(
    [
      '#!/bin/bash',
      *lines,
      '#SBATCH --requeue',
      '',
      *job.setting(),
      again(job.command(job.workdir, 'srun', '--kill-on-bad-exit=1'), requeue),
    ]
  )
  return [Step(('sbatch',), text)]


def tpu(job: Job) -> list[Step]:
  """The same command on every worker of a TPU VM pod slice, which goes on when the connection ends.

  With --accelerator-type a loop here creates the slice as a queued resource, and again whenever it is taken away.
  """
  job.needs('tpu', 'zone')
  creates = job.flags(*CREATED)
  if creates:
    job.needs('tpu', 'zone', 'accelerator-type', 'runtime-version')
  placed(job)
  mount, workdir = [], job.workdir
  if found := BUCKET.fullmatch(job.workdir):
    bucket, path = found[1], found[2] or ''
    folder = f'buckets/{bucket}'
    mount = [f'mkdir -p ~/{folder}', f'mountpoint -q ~/{folder} || {GCSFUSE} {bucket} ~/{folder}']
    workdir = f'{folder}{path}'
  # The folder of the bucket lies in that of the user.
  train = (
    job.command(workdir)
    if not mount
    else job.command('WORKDIR').replace('--workdir=WORKDIR', f'--workdir="$HOME"/{shlex.quote(workdir)}')
  )
  # What asks it to stop may be the end of the machine, which is not its own.
  ended = f'[ -n "$stopped" ] || echo "$status" > ~/{job.name}.status\n' if creates else ''
  script = '\n'.join([*mount, *job.setting(), again(train, ended)])
  begin = f'bash -c {shlex.quote(script)} >> {job.name}.log 2>&1 < /dev/null &'
  if not creates:
    return [
      Step(
        ssh(job, 'all', f'nohup {begin}'), note='train on every worker; it goes on without this connection'
      )
    ]
  return [
    Step(
      ('bash',),
      kept(job, f'[ -e {job.name}.status ] || {{ nohup flock -n {job.name}.lock {begin} }}', creates),
      'as long as this runs, the slice is created again when it is taken away, and trains on from the last checkpoint',
    )
  ]


def kept(job: Job, begin: str, creates: Sequence[str]) -> str:
  """A shell script that looks every minute whether the queued resource is there and trains, and sees to it, until it is done or refused.

  A queued resource whose slice was preempted is suspended for ever: it is deleted, and another created by its name.

  Args:
    begin: shell for every worker, of no effect where it trains already or did to its end; creates: flags of what is created.
  """

  def queued(verb, *flags):
    return shlex.join(
      ['gcloud', 'compute', 'tpus', 'queued-resources', verb, job.name, *job.flags('zone', 'project'), *flags]
    )

  def told(which, command):
    return shlex.join(ssh(job, which, command))

  return f"""{told('all', f'rm -f {job.name}.status')} < /dev/null 2> /dev/null
while :; do
  case "$({queued('describe', '--format=value(state.state)')} 2> /dev/null)" in
    ACTIVE)
      {told('all', begin)}
      status=$({told('0', f'cat {job.name}.status')} 2> /dev/null)
      if [ "$status" = 0 ] || [ "$status" = {REFUSED} ]; then exit "$status"; fi ;;
    SUSPENDED | FAILED)
      {queued('delete', '--force', '--quiet')} ;;
    '')
      {queued('create', f'--node-id={job.name}', *creates)} ;;
  esac
  sleep 60
done < /dev/null
"""


def ssh(job: Job, which: str, command: str) -> tuple[str, ...]:
  """The words that run a command on some workers of a TPU VM."""
  return (
    'gcloud',
    'compute',
    'tpus',
    'tpu-vm',
    'ssh',
    job.name,
    *job.flags('zone', 'project'),
    f'--worker={which}',
    f'--command={command}',
  )


def watching(job: Job) -> list[Step]:
  """What to look at a TPU VM's job with, and what to stop it with: not run by --run."""
  creates = job.flags(*CREATED)
  stop = 'save and stop' + ' (end the loop first: it would begin again)' * bool(creates)
  steps = [
    Step(ssh(job, '0', f'tail -F {job.name}.log'), note='what it says'),
    Step(ssh(job, 'all', f'pkill -TERM -f {shlex.quote("^bash -c .*tfm train")}'), note=stop),
  ]
  if creates:
    steps.append(
      Step(
        (
          'gcloud',
          'compute',
          'tpus',
          'queued-resources',
          'delete',
          job.name,
          *job.flags('zone', 'project'),
          '--force',
        ),
        note='give the slice back, when all is done',
      )
    )
  return steps


def placed(job: Job) -> None:
  """Refuses what machines that are made for the job cannot use: a name that is none, a folder that is not the same for all."""
  require(
    re.fullmatch('[a-z]([-a-z0-9]*[a-z0-9])?', job.name) is not None,
    f'--name={job.name} must be of small letters, digits and dashes, and begin with a letter',
  )
  require(
    BUCKET.fullmatch(job.workdir) is not None or job.workdir.startswith('/'),
    f'--workdir={job.workdir} would be another folder on each machine; gs://BUCKET/…, or the whole path of one that all see, '
    'would do',
  )


def gke(job: Job) -> list[Step]:
  """An xpk workload: a JobSet whose pods are all begun again when one is lost."""
  job.needs('gke', 'cluster', 'tpu-type', 'docker-image')
  placed(job)
  where, steps, workdir = job.flags('cluster', 'zone', 'project'), [], job.workdir
  if found := BUCKET.fullmatch(job.workdir):
    point = f'/buckets/{found[1]}'
    workdir = f'{point}{found[2] or ""}'
    steps.append(
      Step(
        (
          'xpk',
          'storage',
          'attach',
          found[1],
          *where,
          '--type=gcsfuse',
          f'--bucket={found[1]}',
          f'--mount-point={point}',
          '--readonly=false',
          '--auto-mount=true',
        ),
        note='once for a cluster: the bucket, as a folder of every workload',
      )
    )
  script = '\n'.join([*job.setting(), again(job.command(workdir))])
  grace = job.options.get('termination-grace-period-seconds', '120')
  steps.append(
    Step(
      (
        'xpk',
        'workload',
        'create',
        f'--workload={job.name}',
        *where,
        *job.flags('tpu-type', 'num-slices', 'docker-image'),
        f'--max-restarts={job.options.get("max-restarts", "100")}',
        f'--termination-grace-period-seconds={grace}',
        f'--command=bash -c {shlex.quote(script)}',
      )
    )
  )
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
    require(
      has(step.words[0]) is not None,
      f'--run needs {step.words[0]}, which is not on the PATH; without --run its commands are '
      'printed, to be run where it is',
    )
  for step in steps:
    done = subprocess.run(step.words, input=step.given or None, text=True)
    require(done.returncode == 0, f'{step.words[0]} ended with the status {done.returncode}')


def named(workdir: str) -> str:
  """A name for the job: letters, digits and dashes of the workdir's own."""
  return re.sub(r'[^a-z0-9]+', '-', pathlib.PurePosixPath(workdir).name.lower()).strip('-') or 'tfm'
