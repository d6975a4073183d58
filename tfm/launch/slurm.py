"""Slurm: one sbatch file that runs one process per task and requeues itself after preemption."""

import re
import shlex

from tfm.errors import require
from tfm.launch.job import BUCKET, Job, Step, format_flag, restart_loop


def steps(job: Job) -> list[Step]:
  """An sbatch command; the processes find each other through Slurm's environment variables."""
  job.require_options('slurm', 'nodes')
  require(
    not BUCKET.fullmatch(job.workdir),
    f'--workdir={job.workdir} is a bucket; on Slurm use a folder that all nodes see',
  )
  options = {
    'ntasks-per-node': '1',
    'signal': 'B:TERM@120',
    'open-mode': 'append',
    'output': f'{job.name}-%j.log',
  } | dict(job.options)
  require(
    re.fullmatch(r'B:(SIG)?TERM(@\d+)?', options['signal']) is not None,
    f'--signal={options["signal"]} does not make the script save; use B:TERM@SECONDS, the seconds before '
    'the time limit',
  )
  # srun answers a SIGTERM by killing its tasks; scancel sends it to the tasks themselves.
  stop = 'scancel --signal=TERM "$SLURM_JOB_ID"'
  requeue = 'if [ -n "$stopped" ] && [ "$status" = 0 ]; then scontrol requeue "$SLURM_JOB_ID"; fi\n'
  lines = [
    '#!/bin/bash',
    *(
      f'#SBATCH {shlex.quote(format_flag(name, value))}'
      for name, value in {'job-name': job.name, **options}.items()
    ),
    '#SBATCH --requeue',
    '',
    *job.setup_lines(),
    restart_loop(
      job.train_command(job.workdir, 'srun', '--kill-on-bad-exit=1'), shlex.quote(job.workdir), stop, requeue
    ),
  ]
  return [Step(('sbatch',), '\n'.join(lines))]
