"""Runs a study: plans, trains and measures its arms, and writes the report; the same command resumes.

  tfm ablate experiments/position.py --workdir=runs/position --dry_run
  tfm ablate experiments/position.py --workdir=runs/position --config.training.steps=2000
  tfm ablate experiments/position.py --workdir=/shared/position --slice=0/4     (1/4, 2/4, 3/4 on other
  machines)
  tfm ablate experiments/position.py --workdir=/shared/position --report    (of what they have trained)

DIR receives report.html, report.md, results.csv, results.json and PNG plots. arms/ARM/seedN are ordinary
runs, which every other command reads. --config.path=value changes the config of all arms. An arm that fails
is reported, the others continue, and the exit status is 1; so it is where the study is stopped. An arm that
diverges is a result, not a failure.
"""

import argparse
import dataclasses
import functools
import pathlib
import shlex
import sys

from tfm.errors import require
from tfm.studies.study import select_arms


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
    help='train only share I (from 0) of N of the arms, of about equal cost, for machines that share DIR',
  )
  add(
    '--jobs',
    type=int,
    default=1,
    metavar='N',
    help='number of local processes, each with a slice of the arms and of the CPU cores (default: 1)',
  )
  add('--dry_run', action='store_true', help='print the plan and exit')
  add('--report', action='store_true', help='train nothing: write the report of what has been trained')


def validate(args: argparse.Namespace) -> None:
  select_arms(args.study.arms, args.arms and args.arms.split(','))


def main(args: argparse.Namespace) -> int:
  from rich.console import Console

  from tfm.studies import runner, store
  from tfm.studies.arms import estimate_seconds, format_plan, plan_arms
  from tfm.studies.jobs import run_jobs, slice_arms, use_cpu_cores_as_devices
  from tfm.studies.report.page import write_report
  from tfm.studies.report.tables import format_ranking
  from tfm.studies.results_table import collect_study
  from tfm.studies.step_times import measure_step_seconds
  from tfm.training.progress_line import print_status

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
    functools.partial(measure_step_seconds, study, workdir, not (args.dry_run or args.report)),
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
