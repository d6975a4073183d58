"""Slurm: sbatch files that run one process per task, or the arms of a study, and that are requeued after
preemption.
"""

import re
import shlex
from collections.abc import Mapping

from tfm.errors import INVALID_INPUT_STATUS, require
from tfm.launch.job import (
  BUCKET,
  Job,
  Step,
  checkpoints_of_run,
  checkpoints_of_study,
  format_flag,
  restart_loop,
)


def steps(job: Job) -> list[Step]:
  """An sbatch command; the processes find each other through Slurm's environment variables. Of a study, an
  array of tasks, and a job that reports when they have ended.
  """
  require(
    not BUCKET.fullmatch(job.workdir),
    f'--workdir={job.workdir} is a bucket; on Slurm use a folder that all nodes see',
  )
  return steps_of_study(job) if job.slices else steps_of_run(job)


def steps_of_run(job: Job) -> list[Step]:
  """One job with a process for each task."""
  job.require_options('slurm', 'nodes')
  # srun answers a SIGTERM by killing its tasks; scancel sends it to the tasks themselves.
  stop = 'scancel --signal=TERM "$SLURM_JOB_ID"'
  requeue = 'if [ -n "$stopped" ] && [ "$status" = 0 ]; then scontrol requeue "$SLURM_JOB_ID"; fi\n'
  command = job.train_command(job.workdir, 'srun', '--kill-on-bad-exit=1')
  loop = restart_loop(command, checkpoints_of_run(shlex.quote(job.workdir)), stop, requeue)
  defaults = {'ntasks-per-node': '1', 'output': f'{job.name}-%j.log'}
  return [Step(('sbatch',), sbatch_script(job, defaults, loop))]


def steps_of_study(job: Job) -> list[Step]:
  """An array of tasks that share the arms out, and a job that waits for them."""
  for name in ('array', 'dependency'):
    require(name not in job.options, f'--{name} is set by --slices={job.slices}; leave it out')
  command = f'{job.study_command(job.workdir)} --slice="$SLURM_ARRAY_TASK_ID"/{job.slices}'
  # SLURM_JOB_ID of one of the tasks is that of the whole array.
  task = '"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"'
  requeue = (
    f'if [ -n "$stopped" ] && [ "$status" != {INVALID_INPUT_STATUS} ]; then scontrol requeue {task}; fi\n'
  )
  loop = restart_loop(command, checkpoints_of_study(shlex.quote(job.workdir)), after_stop=requeue)
  array = {'array': f'0-{job.slices - 1}', 'output': f'{job.name}-%A_%a.log'}
  report = sbatch_script(
    job, {'output': f'{job.name}-report-%j.log'}, job.study_command(job.workdir, '--report') + '\n'
  )
  # A dependency on the array, and not `singleton`, which a requeued task would not count for.
  script = f"""array=$({Step(('sbatch', '--parsable'), sbatch_script(job, array, loop))}
)
{Step(('sbatch', '--dependency=afterany:ARRAY'), report)}
""".replace('afterany:ARRAY', 'afterany:"${array%%;*}"')
  return [
    Step(('bash',), script, 'a study: tasks that share its arms out, and the report when all have ended')
  ]


def sbatch_script(job: Job, defaults: Mapping[str, str], script: str) -> str:
  """A script with its options, which gets SIGTERM before its time limit and may be requeued.

  Args:
    defaults: options that those of the job override.
  """
  options = defaults | {'signal': 'B:TERM@120', 'open-mode': 'append'} | dict(job.options)
  require(
    re.fullmatch(r'B:(SIG)?TERM(@\d+)?', options['signal']) is not None,
    f'--signal={options["signal"]} does not make the script save; use B:TERM@SECONDS, the seconds before '
    'the time limit',
  )
  flags = {'job-name': job.name, **options}
  lines = ['#!/bin/bash', *(f'#SBATCH {shlex.quote(format_flag(name, flags[name]))}' for name in flags)]
  return '\n'.join([*lines, '#SBATCH --requeue', '', *job.setup_lines(), script])
