"""Kubernetes (GKE): an xpk workload."""

import shlex

from tfm.launch.job import (
  BUCKET,
  Job,
  Step,
  checkpoints_of_run,
  checkpoints_of_study,
  restart_loop,
  validate_placement,
)


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
    )
    words = 'xpk', 'storage', 'attach', match[1], *cluster_flags, *storage_flags
    result.append(Step(words, note='once per cluster: the bucket as a folder of every workload'))
  folder = shlex.quote(workdir)
  if not job.slices:
    loop = restart_loop(job.train_command(workdir), checkpoints_of_run(folder))
    return [*result, workload(job, job.name, loop)]
  for i in range(job.slices):
    command = job.study_command(workdir, f'--slice={i}/{job.slices}')
    result.append(workload(job, f'{job.name}-{i}', restart_loop(command, checkpoints_of_study(folder))))
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
      f'--command=bash -c {shlex.quote(script)}',
    )
  )
