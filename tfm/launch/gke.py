"""Kubernetes (GKE): an xpk workload."""

import shlex

from tfm.launch.job import BUCKET, Job, Step, restart_loop, validate_placement


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
  """An xpk workload: a JobSet that restarts all of its pods when one is lost."""
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
  script = '\n'.join([*job.setup_lines(), restart_loop(job.train_command(workdir), shlex.quote(workdir))])
  grace = job.options.get('termination-grace-period-seconds', '120')
  words = (
    *('xpk', 'workload', 'create', f'--workload={job.name}'),
    *cluster_flags,
    *job.flags('tpu-type', 'num-slices', 'docker-image'),
    f'--max-restarts={job.options.get("max-restarts", "100")}',
    f'--termination-grace-period-seconds={grace}',
    f'--command=bash -c {shlex.quote(script)}',
  )
  return [*result, Step(words)]
