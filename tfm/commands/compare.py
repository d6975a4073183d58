"""Compares finished runs: the report of `tfm ablate`, without training.

  tfm compare runs/rope runs/alibi --to=runs/rope-alibi
  tfm compare runs/*/seed* --base=rope --metric=bits_per_byte --to=runs/all
  tfm compare runs/position runs/other/arms/alibi --to=runs/both

The folder of a study or of an arm stands for all its runs, also for those that diverged, which count as the
worst outcome. Runs that differ only in their seed form one arm. An arm has the name of its folder, or of the
parent of a seed's folder; arms with equal names get the name of their study as a prefix. The first arm is the
base unless --base names another.
"""

import argparse
import pathlib
import shlex

from tfm.config.schema import leaves
from tfm.errors import require, suggest
from tfm.spec import PositiveFloat, unsuitable_reason
from tfm.studies import finished_runs
from tfm.studies.study import check_direction, prefix_errors


def arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add(
    'runs',
    nargs='+',
    metavar='DIR',
    help='folder of a run of tfm train or tfm ablate, of a study, or of an arm',
  )
  add('--to', required=True, metavar='DIR', help='folder of the report')
  add('--base', metavar='ARM', help='arm that the others are compared with (default: the first)')
  add(
    '--metric', default='loss', metavar='NAME', help='validation metric that ranks the arms (default: loss)'
  )
  add('--higher_is_better', action='store_true', help='higher values of the metric are better')
  add(
    '--equal_within',
    type=float,
    metavar='X',
    help='a difference of the metric that does not matter (default: every difference does)',
  )


def validate(args: argparse.Namespace) -> None:
  reason = unsuitable_reason(args.equal_within, PositiveFloat | None)
  require(not reason, f'--equal_within={args.equal_within} {reason}')
  check_direction(args.metric, args.higher_is_better)
  args.folders = [folder for text in args.runs for folder in finished_runs.find_runs(pathlib.Path(text))]
  metrics = finished_runs.list_metrics(args.folders)
  require(
    args.metric in metrics or not metrics,  # runs without metrics are refused with a better reason
    f'--metric={args.metric} is no metric of these runs; {suggest(args.metric, metrics)}',
  )


def main(args: argparse.Namespace) -> int:
  from tfm.config.assemble import Experiment
  from tfm.studies.arms import check_same_part, estimate_arm
  from tfm.studies.report.page import write_report
  from tfm.studies.report.tables import format_ranking
  from tfm.studies.results_table import collect_runs

  groups = finished_runs.group_by_arm(args.folders)
  base = args.base or next(iter(groups))
  require(base in groups, f'--base={base} is not an arm; {suggest(base, groups)}')
  arms, run_dirs = {}, {}
  first = groups[base][0]
  reference = Experiment(first[1])
  for name, runs in groups.items():
    config = runs[0][1]
    changes = {
      path: value
      for path, value in leaves(config)
      if dict(leaves(first[1])).get(path) != value and path != 'seed'
    }
    experiment = Experiment(config)
    with prefix_errors(name):
      check_same_part(args.metric, experiment, reference)
    arms[name] = estimate_arm(name, changes, experiment, {}, len(runs))
    run_dirs[name] = {config.seed: run_dir for run_dir, config in runs}
  seeds = sorted({seed for of_arm in run_dirs.values() for seed in of_arm})
  header = dict(
    name=f'{len(arms)} arms of finished runs',
    question=f'How do {", ".join(arms)} compare?',
    literature='',
    base=base,
    metric=args.metric,
    lower_is_better=not args.higher_is_better,
    equal_within=args.equal_within,
    match=None,
    seeds=seeds,
    command=shlex.join(['tfm', *args.words]),
    length=first[1].data.length,
    seconds=None,
  )
  # arm.json records where and when the runs of a study trained, and which diverged.
  records = {
    name: dict(
      made=finished_runs.read_provenance(runs[0][0]),
      diverged={
        str(config.seed): reason
        for run_dir, config in runs
        if (reason := finished_runs.find_divergence(run_dir))
      },
    )
    for name, runs in groups.items()
  }
  results = collect_runs(header, arms, run_dirs, records)
  hashes = results['study']['data'].split(', ')
  require(
    len(hashes) == 1,
    f'the runs trained on different data, with the content hashes {", ".join(hashes)}; compare runs on the '
    f'same data',
  )
  page = write_report(results, pathlib.Path(args.to))
  print(format_ranking(results))
  print(f'report: {page}')
  return 0
