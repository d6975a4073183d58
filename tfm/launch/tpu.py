"""TPU VMs: the same command on every worker of a slice, over ssh."""

import shlex
from collections.abc import Sequence

from tfm.errors import require
from tfm.launch.job import BUCKET, Job, Step, checkpoints_of_run, restart_loop, validate_placement


# gcsfuse with folder renames, by which a checkpoint is committed, on a bucket without folders.
GCSFUSE = 'gcsfuse --implicit-dirs --rename-dir-limit=1000000'
# The options that say how to create a slice; without any of them the slice must exist.
CREATION_OPTIONS = 'accelerator-type', 'runtime-version', 'spot', 'reserved'
OPTIONS = 'zone', 'project', *CREATION_OPTIONS


def steps(job: Job) -> list[Step]:
  """Training on every worker of a TPU VM slice, which continues when the connection ends.

  With --accelerator-type a local loop creates the slice as a queued resource, and creates it again after
  every preemption.
  """
  require(
    not job.slices, '--study is for slurm and gke, which run several tasks; tpu launches a run, --config'
  )
  job.require_options('tpu', 'zone')
  creation_flags = job.flags(*CREATION_OPTIONS)
  if creation_flags:
    job.require_options('tpu', 'zone', 'accelerator-type', 'runtime-version')
  validate_placement(job)
  mount_lines, workdir, train = [], shlex.quote(job.workdir), job.train_command(job.workdir)
  if match := BUCKET.fullmatch(job.workdir):
    bucket, path = match[1], match[2] or ''
    mount = f'buckets/{bucket}'
    mount_lines = [f'mkdir -p ~/{mount}', f'mountpoint -q ~/{mount} || {GCSFUSE} {bucket} ~/{mount}']
    # The bucket is mounted in the user's home folder, whose path the shell over there expands.
    workdir = f'"$HOME"/{shlex.quote(f"{mount}{path}")}'
    train = job.train_command('WORKDIR').replace('--workdir=WORKDIR', f'--workdir={workdir}')
  # A SIGTERM may come from the end of the machine; only an end of the command's own counts as finished.
  write_status = f'[ -n "$stopped" ] || echo "$status" > ~/{job.name}.status\n' if creation_flags else ''
  script = '\n'.join(
    [
      *mount_lines,
      *job.setup_lines(),
      restart_loop(train, checkpoints_of_run(workdir), after_stop=write_status),
    ]
  )
  start = f'bash -c {shlex.quote(script)} >> {job.name}.log 2>&1 < /dev/null &'
  if not creation_flags:
    note = 'train on every worker; training continues without this connection'
    return [Step(ssh_command(job, 'all', f'nohup {start}'), note=note)]
  start_once = f'[ -e {job.name}.status ] || {{ nohup flock -n {job.name}.lock {start} }}'
  note = 'while this runs, a preempted slice is created again and resumes from the last checkpoint'
  return [Step(('bash',), recreation_loop(job, start_once, creation_flags), note)]


def recreation_loop(job: Job, start_once: str, creation_flags: Sequence[str]) -> str:
  """A shell script that keeps a queued resource training until training ends.

  It looks every minute. A queued resource whose slice was preempted stays suspended for ever: it is deleted,
  and another is created under its name.

  Args:
    start_once: shell command for every worker; it has no effect where training runs or has ended.
    creation_flags: flags of the queued resource.
  """

  def queued_resource(verb, *flags):
    return shlex.join(
      ['gcloud', 'compute', 'tpus', 'queued-resources', verb, job.name, *job.flags('zone', 'project'), *flags]
    )

  def ssh(worker, command):
    return shlex.join(ssh_command(job, worker, command))

  return f"""{ssh('all', f'rm -f {job.name}.status')} < /dev/null 2> /dev/null
while :; do
  case "$({queued_resource('describe', '--format=value(state.state)')} 2> /dev/null)" in
    ACTIVE)
      {ssh('all', start_once)}
      status=$({ssh('0', f'cat {job.name}.status')} 2> /dev/null)
      if [ -n "$status" ]; then exit "$status"; fi ;;
    SUSPENDED | FAILED)
      {queued_resource('delete', '--force', '--quiet')} ;;
    '')
      {queued_resource('create', f'--node-id={job.name}', *creation_flags)} ;;
  esac
  sleep 60
done < /dev/null
"""


def ssh_command(job: Job, worker: str, command: str) -> tuple[str, ...]:
  """The command line that runs a command on one worker or all workers of a TPU VM."""
  gcloud = 'gcloud', 'compute', 'tpus', 'tpu-vm', 'ssh'
  return *gcloud, job.name, *job.flags('zone', 'project'), f'--worker={worker}', f'--command={command}'


def monitoring_steps(job: Job) -> list[Step]:
  """Commands to watch and to stop the job; printed, never run by --run."""
  creates = bool(job.flags(*CREATION_OPTIONS))
  stop = 'save and stop' + (' (end the loop first: it would start training again)' if creates else '')
  result = [
    Step(ssh_command(job, '0', f'tail -F {job.name}.log'), note='follow the log'),
    Step(ssh_command(job, 'all', f'pkill -TERM -f {shlex.quote("^bash -c .*tfm train")}'), note=stop),
  ]
  if creates:
    delete = 'gcloud', 'compute', 'tpus', 'queued-resources', 'delete'
    words = *delete, job.name, *job.flags('zone', 'project'), '--force'
    result.append(Step(words, note='delete the slice when training is done'))
  return result
