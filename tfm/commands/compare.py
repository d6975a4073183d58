"""Compares finished runs: the report of `tfm ablate`, without training.

  tfm compare runs/rope runs/alibi --to=runs/rope-alibi
  tfm compare runs/*/seed* --base=rope --metric=bits_per_byte --to=runs/all
  tfm compare runs/position runs/other/arms/alibi --to=runs/both

The folder of a study or of an arm stands for all its runs that did not diverge. Runs that differ only in
their seed form one arm. An arm has the name of its folder, or of the parent of a seed's folder; arms with
equal names get the name of their study as a prefix. The first arm is the base unless --base names another.
"""

import argparse
import collections
import json
import pathlib
import re
import shlex

from ml_collections import ConfigDict

from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.config.schema import leaves
from tfm.errors import require, suggest
from tfm.runs import load
from tfm.studies import store
from tfm.studies.arms import estimate_arm
from tfm.studies.report.page import write_report
from tfm.studies.report.tables import format_ranking
from tfm.studies.results_table import collect_runs
from tfm.training.progress_line import print_status


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


def main(args: argparse.Namespace) -> int:
  groups = group_by_arm([folder for text in args.runs for folder in find_runs(pathlib.Path(text))])
  base = args.base or next(iter(groups))
  require(base in groups, f'--base={base} is not an arm; {suggest(base, groups)}')
  arms, run_dirs = {}, {}
  first = groups[base][0]
  for name, runs in groups.items():
    config = runs[0][1]
    changes = {
      path: value
      for path, value in leaves(config)
      if dict(leaves(first[1])).get(path) != value and path != 'seed'
    }
    arms[name] = estimate_arm(name, changes, Experiment(config), {}, len(runs))
    run_dirs[name] = {config.seed: run_dir for run_dir, config in runs}
  seeds = sorted({seed for of_arm in run_dirs.values() for seed in of_arm})
  header = dict(
    name=f'{len(arms)} arms of finished runs',
    question=f'How do {", ".join(arms)} compare?',
    literature='',
    base=base,
    metric=args.metric,
    lower_is_better=not args.higher_is_better,
    match=None,
    seeds=seeds,
    command=shlex.join(['tfm', *args.words]),
    length=first[1].data.length,
    seconds=None,
  )
  # arm.json records where and when the runs of a study trained.
  records = {name: {'made': read_provenance(runs[0][0])} for name, runs in groups.items()}
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


def read_provenance(folder: pathlib.Path) -> list[dict[str, str]]:
  """Machines, versions and dates that a study recorded for a run's arm; empty for other runs."""
  return store.read_arm(folder.resolve().parent).get('made', [])


def find_runs(folder: pathlib.Path) -> list[pathlib.Path]:
  """The runs in the folder of a study or an arm, without those that diverged; any other folder itself."""
  if (folder / 'checkpoints').is_dir():
    return [folder]
  results = folder / 'results.json'
  order = (
    [arm['name'] for arm in json.loads(results.read_text(encoding='utf-8'))['arms']]
    if results.is_file()
    else []
  )
  arms = [
    (store.read_arm(path.parent), path.parent)
    for path in sorted([*folder.glob('arms/*/arm.json'), *folder.glob('arm.json')])
  ]
  runs = []
  # In the order of the study, its base first.
  for record, arm in sorted(arms, key=lambda pair: [*order, pair[0]['name']].index(pair[0]['name'])):
    seeds = sorted(arm.glob('seed*'), key=lambda seed: int(seed.name.removeprefix('seed')))
    diverged = [seed for seed in seeds if seed.name.removeprefix('seed') in record.get('diverged', {})]
    if diverged:
      print_status(f'skipping diverged runs: {", ".join(map(str, diverged))}')
    runs += [seed for seed in seeds if seed not in diverged and (seed / 'checkpoints').is_dir()]
  return runs or [folder]


def arm_and_study_name(folder: pathlib.Path) -> tuple[str, str]:
  """The name of a run's arm, and of its study or the folder above the arm."""
  arm = folder.parent if re.fullmatch(r'seed_?\d+', folder.name) else folder
  return store.read_arm(arm).get('name', arm.name), (
    arm.parents[1] if arm.parent.name == 'arms' else arm.parent
  ).name


def group_by_arm(folders: list[pathlib.Path]) -> dict[str, list[tuple[pathlib.Path, ConfigDict]]]:
  """The runs and their configs, by arm.

  Raises:
    ValueError: if a folder is not a finished run, two runs of an arm have the same seed, or two arms the
      same name.
  """
  arms, names = collections.defaultdict(list), {}
  for folder in folders:
    require(
      (folder / 'checkpoints').is_dir(),
      f'{folder} is not the folder of a run; use one that tfm train or tfm ablate wrote',
    )
    config = resolve_config(complete(load.checkpoint_metadata(folder)['config']))
    require(
      store.last_step(folder) == config.training.steps,
      f'{folder} is at step {store.last_step(folder)} of {config.training.steps}; resume it with the command '
      'that started it',
    )
    key = json.dumps(config.to_dict() | dict(seed=None), sort_keys=True)
    duplicates = [other for other, its in arms[key] if its.seed == config.seed]
    require(
      not duplicates,
      f'{folder} and {", ".join(map(str, duplicates))} have the same config and seed {config.seed}; pass one '
      f'of them',
    )
    arms[key].append((folder, config))
    names.setdefault(key, arm_and_study_name(folder.resolve()))
  names = {key: name for key, (name, _) in names.items()} | {
    key: f'{above}/{name}'
    for key, (name, above) in names.items()
    if [other for other, _ in names.values()].count(name) > 1
  }
  require(
    len({*names.values()}) == len(names),
    f'two arms have the name {max(names.values(), key=list(names.values()).count)!r}; '
    'put the runs into folders with different names',
  )
  return {names[key]: runs for key, runs in arms.items()}
