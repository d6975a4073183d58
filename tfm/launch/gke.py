"""Kubernetes (GKE): an xpk workload.

As xpk 1.16 reads it, which `tests/launch/test_xpk.py` runs: the command is one line, because it becomes one
of a YAML block; a pod that ends with a status of 127 or more restarts all pods, up to --max-restarts times,
and one with another status but 0 ends the workload for good.
"""

import shlex

from tfm.errors import INVALID_INPUT_STATUS
from tfm.launch.job import (
  BUCKET,
  Job,
  Step,
  checkpoints_of_run,
  checkpoints_of_study,
  restart_loop,
  validate_placement,
)


# A pod that was stopped must not count as finished (143: SIGTERM); one that gives up ends the workload.
END = (
  f'if [ -n "$stopped" ] && [ "$status" != {INVALID_INPUT_STATUS} ]; then status=143; '
  'elif [ "$status" -gt 126 ]; then status=1; fi\n'
)
GCSFUSE_SIZE = 1000  # GB: xpk requires the size of a volume, which a bucket has not
OPTIONS = (
  'cluster',
  'tpu-type',
  'docker-image',
  'num-slices',
  'zone',
  'project',
  'max-restarts',
  'termination-grace-period-seconds',
)


def steps(job: Job) -> list[Step]:
  """An xpk workload: a JobSet that restarts all of its pods when one is lost; of a study, one for each task.

  The task of a study that ends last reports on all arms.
  """
  job.require_options('gke', 'cluster', 'tpu-type', 'docker-image')
  validate_placement(job)
  cluster_flags, result, workdir = job.flags('cluster', 'zone', 'project'), [], job.workdir
  if match := BUCKET.fullmatch(job.workdir):
    mount_point = f'/buckets/{match[1]}'
    workdir = f'{mount_point}{match[2] or ""}'
    storage_flags = (
      '--type=gcsfuse',
      f'--bucket={match[1]}',
      f'--mount-point={mount_point}',
      '--readonly=false',
      '--auto-mount=true',
      f'--size={GCSFUSE_SIZE}',
    )
    words = 'xpk', 'storage', 'attach', match[1], *cluster_flags, *storage_flags
    result.append(Step(words, note='once per cluster: the bucket as a folder of every workload'))
  folder = shlex.quote(workdir)
  if not job.slices:
    loop = restart_loop(job.train_command(workdir), checkpoints_of_run(folder), after_stop=END)
    return [*result, workload(job, job.name, loop)]
  for i in range(job.slices):
    command = job.study_command(workdir, f'--slice={i}/{job.slices}')
    loop = restart_loop(command, checkpoints_of_study(folder), after_stop=END)
    result.append(workload(job, f'{job.name}-{i}', loop))
  return result


def workload(job: Job, name: str, loop: str) -> Step:
  """The command that creates a workload of a name."""
  script = '\n'.join([*job.setup_lines(), loop])
  grace = job.options.get('termination-grace-period-seconds', '120')
  return Step(
    (
      *('xpk', 'workload', 'create', f'--workload={name}'),
      *job.flags('cluster', 'zone', 'project'),
      *job.flags('tpu-type', 'num-slices', 'docker-image'),
      f'--max-restarts={job.options.get("max-restarts", "100")}',
      f'--termination-grace-period-seconds={grace}',
      f'--command=bash -c {quote_on_one_line(script)}',
    )
  )


def quote_on_one_line(text: str) -> str:
  """A text as one word of bash, without line breaks."""
  escaped = text.replace('\\', r'\\').replace("'", r'\'').replace('\n', r'\n')
  return f"$'{escaped}'"
