"""Runs a study: plans, trains and measures its arms, and writes the report; the same command resumes.

  tfm ablate experiments/position.py --workdir=runs/position --dry_run
  tfm ablate experiments/position.py --workdir=runs/position --config.training.steps=2000
  tfm ablate experiments/position.py --workdir=/shared/position --slice=0/4     (1/4, 2/4, 3/4 on other
  machines)
  tfm ablate experiments/position.py --workdir=/shared/position --report    (of what they have trained)

DIR receives report.html, report.md, results.csv, results.json and PNG plots. arms/ARM/seedN are ordinary
runs, which every other command reads. --config.path=value changes the config of all arms. An arm that fails
is reported, the others continue, and the exit status is 1. An arm that diverges is a result, not a failure.
"""

import argparse
import contextlib
import dataclasses
import functools
import os
import pathlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence

import jax
from rich.console import Console

from tfm.analysis import estimate
from tfm.config.overlay import complete
from tfm.errors import require
from tfm.parallel import chip_specs
from tfm.studies import runner, store
from tfm.studies.arms import Arm, format_plan, plan_arms, select_arms
from tfm.studies.report.page import write_report
from tfm.studies.report.tables import format_ranking
from tfm.studies.results_table import collect_study
from tfm.studies.study import Study
from tfm.training.progress_line import print_status


def arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add('study', metavar='FILE[:args]', help='a Python file with get_study(arg)')
  add('--workdir', required=True, metavar='DIR', help='the folder of the study')
  add(
    '--arms', metavar='A,B', help='train only these arms; the report contains all trained arms (default: all)'
  )
  add('--seeds', type=int, metavar='N', help='number of seeds of each arm (default: set by the study)')
  add(
    '--slice',
    metavar='I/N',
    help='train only every N-th arm, starting at arm I (from 0), for several machines that share DIR',
  )
  add(
    '--jobs',
    type=int,
    default=1,
    metavar='N',
    help='number of local processes, each with a slice of the arms (default: 1)',
  )
  add('--dry_run', action='store_true', help='print the plan and exit')
  add('--report', action='store_true', help='train nothing: write the report of what has been trained')


def main(args: argparse.Namespace) -> int:
  study, workdir = args.study, pathlib.Path(args.workdir)
  if args.seeds is not None:
    study = dataclasses.replace(study, seeds=args.seeds)
  require(args.jobs >= 1, f'--jobs={args.jobs} must be at least 1')
  require(
    args.jobs == 1 or args.slice is None,
    f'--jobs={args.jobs} assigns slices itself; remove it or --slice={args.slice}',
  )
  use_cpu_cores_as_devices(study)
  selected = select_arms(study.arms, args.arms and args.arms.split(','))
  all_arms = plan_arms(
    study,
    [name for name in study.arms if name in selected or store.has_started(store.arm_dir(workdir, name))],
    functools.partial(runner.measure_step_seconds, study, workdir, not (args.dry_run or args.report)),
  )
  arms = {name: arm for name, arm in all_arms.items() if name in selected}
  runner.check_measures(study, all_arms)
  my_arms = slice_arms(arms, args.slice)
  runner.check_resumable(study, all_arms if args.slice is None else my_arms, workdir)
  unfinished = (
    all_arms
    if args.dry_run
    else {
      name: arm
      for name, arm in arms.items()
      if not runner.is_finished(study, arm, store.arm_dir(workdir, name))
    }
  )
  # A slice runs beside other processes, which would distort the measured time.
  seconds = estimate_seconds(study, all_arms, unfinished) if unfinished and args.slice is None else {}
  Console(stderr=True, width=None if sys.stderr.isatty() else 120).print(
    format_plan(study, all_arms, seconds)
  )
  if args.dry_run:
    return 0
  failed = []
  try:
    if args.report:
      my_arms = {}
    elif args.jobs > 1:
      failed = run_jobs(args.words, args.jobs, workdir)
    else:
      runner.run_study(study, my_arms, workdir)
  except runner.Stopped:
    print_status('stopped; run the same command to resume')
    return 1
  results = collect_study(study, args.file, all_arms, workdir, shlex.join(['tfm', *args.words]))
  page = write_report(results, workdir)
  print(format_ranking(results))
  print(f'report: {page}')
  return 1 if failed or any(store.has_error(store.arm_dir(workdir, name)) for name in my_arms) else 0


def use_cpu_cores_as_devices(study: Study) -> None:
  """Makes each CPU core a JAX device, because seeds are distributed over devices.

  The number of devices divides the rows of a batch, which a run that trains alone distributes over them. A
  number that the environment sets is not changed.
  """
  is_configured = (
    jax.config.jax_num_cpu_devices >= 0
    or 'xla_force_host_platform_device_count' in os.environ.get('XLA_FLAGS', '')
  )
  training = complete(study.config).training
  rows = training.batch_size // training.gradient_accumulation
  if study.seeds > 1 and not is_configured:
    with contextlib.suppress(RuntimeError):  # JAX is already initialized
      jax.config.update(
        'jax_num_cpu_devices', max(n for n in range(1, chip_specs.cpu_core_count() + 1) if rows % n == 0)
      )


def estimate_seconds(study: Study, arms: Mapping[str, Arm], names: Iterable[str]) -> dict[str, float]:
  """Training seconds of all seeds of some arms: the base's measured step, scaled by FLOPs."""
  base = arms[study.base]
  rate = (
    estimate.measure_step(base.experiment, study.seeds).seconds
    * base.config.training.steps
    / (base.flops * base.tokens)
  )
  return {name: rate * arms[name].flops * arms[name].tokens for name in names}


def slice_arms(arms: dict[str, Arm], text: str | None) -> dict[str, Arm]:
  """Every N-th arm, starting at arm I, for 'I/N'; all for None.

  Raises:
    ValueError: for another format.
  """
  if text is None:
    return arms
  first, _, count = text.partition('/')
  require(
    first.isdigit() and count.isdigit() and int(first) < int(count),
    f'--slice={text} must be I/N with I < N, such as 0/4 for the first of four slices',
  )
  return dict(list(arms.items())[int(first) :: int(count)])


def run_jobs(words: Sequence[str], jobs: int, workdir: pathlib.Path) -> list[int]:
  """Runs a command in several processes, each with a slice of the arms; their output goes to DIR/jobs.

  Returns:
    The numbers of the processes that failed.

  Raises:
    Stopped: on SIGTERM or Ctrl-C, after the other processes have stopped.
  """
  folder = workdir / 'jobs'
  folder.mkdir(parents=True, exist_ok=True)
  print_status(f'{jobs} processes; their output: {folder}/0.txt …')
  processes, environment = [], dict(os.environ)
  if jax.config.jax_num_cpu_devices > 0:
    environment['JAX_NUM_CPU_DEVICES'] = str(max(1, jax.config.jax_num_cpu_devices // jobs))
  before = signal.signal(signal.SIGTERM, signal.default_int_handler)
  try:
    for i in range(jobs):
      with (folder / f'{i}.txt').open('w', encoding='utf-8') as file:
        processes.append(
          subprocess.Popen(
            [sys.executable, '-m', 'tfm', *words, '--jobs=1', f'--slice={i}/{jobs}'],
            stdout=file,
            stderr=file,
            env=environment,
          )
        )
    failed = [i for i, process in enumerate(processes) if process.wait()]
  except KeyboardInterrupt:
    for process in processes:
      process.terminate()
    for process in processes:
      process.wait()
    raise runner.Stopped from None
  finally:
    signal.signal(signal.SIGTERM, before)
  if failed:
    print_status(f'processes {failed} failed; see their output in {folder}')
  return failed
