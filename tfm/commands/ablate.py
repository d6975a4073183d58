"""Carries out a study: plans its arms, trains and asks them, and reports. Run again, it goes on.

  tfm ablate experiments/position.py --workdir=runs/position --dry_run
  tfm ablate experiments/position.py --workdir=runs/position --config.training.steps=2000
  tfm ablate experiments/position.py --workdir=/shared/position --slice=0/4     (and 1/4, 2/4, 3/4 elsewhere)

DIR gets report.html, report.md, results.csv, results.json and pictures, and in arms/ARM/seedN ordinary runs, which every other
command reads. --config.path=value changes the base of all arms. An arm that fails is reported, the others go on, and the exit
status is 1; one that diverges has done what it does.
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
from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.errors import require
from tfm.parallel import chips
from tfm.studies import arms as planned
from tfm.studies import runner
from tfm.studies.report import page as report
from tfm.studies.study import Study
from tfm.training.progress import print_status


def arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add('study', metavar='FILE[:args]', help='a Python file with get_study(arg)')
  add('--workdir', required=True, metavar='DIR', help='where the study lives')
  add('--arms', metavar='A,B', help='train only these arms; the report has all that are there (default: all)')
  add('--seeds', type=int, metavar='N', help='seeds of each arm (default: as the study says)')
  add(
    '--slice',
    metavar='I/N',
    help='train only every N-th arm from the I-th on, the first being 0: machines share a folder',
  )
  add('--jobs', type=int, default=1, metavar='N', help='processes here, each with a slice (default: 1)')
  add('--dry_run', action='store_true', help='plan only')


def main(args: argparse.Namespace) -> int:
  study, workdir = args.study, pathlib.Path(args.workdir)
  if args.seeds is not None:
    study = dataclasses.replace(study, seeds=args.seeds)
  require(args.jobs >= 1, f'--jobs={args.jobs} must be at least 1')
  require(
    args.jobs == 1 or args.slice is None,
    f'--jobs={args.jobs} makes slices of its own beside --slice={args.slice}; leave one of them out',
  )
  cores(study)
  wanted = planned.select(study.arms, args.arms and args.arms.split(','))
  everything = planned.plan(
    study,
    [name for name in study.arms if name in wanted or runner.begun(runner.folder_of(workdir, name))],
    functools.partial(runner.paced, study, workdir, not args.dry_run),
  )
  arms = {name: arm for name, arm in everything.items() if name in wanted}
  runner.check_questions(study, everything)
  mine = part(arms, args.slice)
  runner.refuse_others(study, everything if args.slice is None else mine, workdir)
  left = (
    everything
    if args.dry_run
    else {
      name: arm
      for name, arm in arms.items()
      if not runner.finished(study, arm, runner.folder_of(workdir, name))
    }
  )
  # One of several processes has others beside it, which would be measured too.
  timed = seconds(study, everything, left) if left and args.slice is None else {}
  Console(stderr=True, width=None if sys.stderr.isatty() else 120).print(
    planned.table(study, everything, timed)
  )
  if args.dry_run:
    return 0
  failed = []
  try:
    if args.jobs > 1:
      failed = spread(args.words, args.jobs, workdir)
    else:
      runner.carry_out(study, mine, workdir)
  except runner.Stopped:
    print_status('stopped; the same command goes on from there')
    return 1
  found = runner.results(study, args.file, everything, workdir, shlex.join(['tfm', *args.words]))
  page = report.write(found, workdir)
  print(report.table(found))
  print(f'report: {page}')
  return 1 if failed or any(runner.failed(runner.folder_of(workdir, name)) for name in mine) else 0


def cores(study: Study) -> None:
  """Makes the cores of a CPU devices, unless the environment says how many: seeds are laid over devices.

  Not more than divide the rows of a batch, which a run that trains alone lays over them.
  """
  told = jax.config.jax_num_cpu_devices >= 0 or 'xla_force_host_platform_device_count' in os.environ.get(
    'XLA_FLAGS', ''
  )
  training = complete(study.config).training
  rows = training.batch_size // training.gradient_accumulation
  if study.seeds > 1 and not told:
    with contextlib.suppress(RuntimeError):  # where Python has used JAX before, what it found there stays
      jax.config.update(
        'jax_num_cpu_devices', max(n for n in range(1, chips.cpu_core_count() + 1) if rows % n == 0)
      )


def seconds(study: Study, arms: Mapping[str, planned.Arm], names: Iterable[str]) -> dict[str, float]:
  """Of all seeds of some arms: the base's, measured, in proportion to the FLOPs."""
  base = arms[study.base]
  rate = (
    estimate.measure_step(Experiment(base.config), study.seeds).seconds
    * base.config.training.steps
    / (base.flops * base.tokens)
  )
  return {name: rate * arms[name].flops * arms[name].tokens for name in names}


def part(arms: dict[str, planned.Arm], text: str | None) -> dict[str, planned.Arm]:
  """Every n-th arm from the i-th on, for 'i/n'.

  Raises:
    ValueError: for other texts.
  """
  if text is None:
    return arms
  first, _, count = text.partition('/')
  require(
    first.isdigit() and count.isdigit() and int(first) < int(count),
    f'--slice={text} must be I/N, such as 0/4 for the first of four',
  )
  return dict(list(arms.items())[int(first) :: int(count)])


def spread(words: Sequence[str], jobs: int, workdir: pathlib.Path) -> list[int]:
  """Carries out a command in several processes, each with a slice; what they say goes to DIR/jobs.

  Returns:
    The processes that did not come through all of their arms.

  Raises:
    Stopped: if this one was asked to stop, when the others have stopped.
  """
  folder = workdir / 'jobs'
  folder.mkdir(parents=True, exist_ok=True)
  print_status(f'{jobs} processes; what they say: {folder}/0.txt …')
  running, environment = [], dict(os.environ)
  if jax.config.jax_num_cpu_devices > 0:
    environment['JAX_NUM_CPU_DEVICES'] = str(max(1, jax.config.jax_num_cpu_devices // jobs))
  before = signal.signal(signal.SIGTERM, signal.default_int_handler)
  try:
    for i in range(jobs):
      with (folder / f'{i}.txt').open('w') as file:
        running.append(
          subprocess.Popen(
            [sys.executable, '-m', 'tfm', *words, '--jobs=1', f'--slice={i}/{jobs}'],
            stdout=file,
            stderr=file,
            env=environment,
          )
        )
    failed = [i for i, process in enumerate(running) if process.wait()]
  except KeyboardInterrupt:
    for process in running:
      process.terminate()
    for process in running:
      process.wait()
    raise runner.Stopped from None
  finally:
    signal.signal(signal.SIGTERM, before)
  if failed:
    print_status(f'the processes {failed} did not come through all of their arms; {folder} tells why')
  return failed
