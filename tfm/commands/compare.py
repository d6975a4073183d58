"""Compares finished runs, whoever trained them: the report of `tfm ablate`, without training.

  tfm compare runs/rope runs/alibi --to=runs/rope-alibi
  tfm compare runs/*/seed* --base=rope --metric=bits_per_byte --to=runs/all
  tfm compare runs/position runs/other/arms/alibi --to=runs/both

The folder of a study, or of an arm of one, stands for its runs, but for those that diverged. Runs that differ in nothing but
their seed are one arm. An arm is called what its folder is, or the one above where that is but a seed's; where two are called
the same, the name of their study is put before. The first is the base unless --base names another.
"""

import argparse
import collections
import json
import pathlib
import re
import shlex

from ml_collections import ConfigDict

from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.config.schema import leaves
from tfm.errors import require, suggest
from tfm.runs import load
from tfm.studies import arms as planned
from tfm.studies import runner
from tfm.studies.report import page as report
from tfm.training.progress import print_status


def arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add(
    'runs',
    nargs='+',
    metavar='DIR',
    help='of a run that tfm train or tfm ablate made, of a study, or of an arm',
  )
  add('--to', required=True, metavar='DIR', help='where the report goes')
  add('--base', metavar='ARM', help='that the others are compared with (default: the first)')
  add(
    '--metric', default='loss', metavar='NAME', help='of the validation split, that decides (default: loss)'
  )
  add('--higher', action='store_true', help='more of it is better')


def main(args: argparse.Namespace) -> int:
  groups = grouped([folder for text in args.runs for folder in runs(pathlib.Path(text))])
  base = args.base or next(iter(groups))
  require(base in groups, f'--base={base} is no arm; {suggest(base, groups)}')
  arms, places = {}, {}
  first = groups[base][0]
  for name, found in groups.items():
    config = found[0][1]
    changes = {
      path: value
      for path, value in leaves(config)
      if dict(leaves(first[1])).get(path) != value and path != 'seed'
    }
    arms[name] = planned.cost(name, changes, config, {}, len(found))
    places[name] = {config.seed: place for place, config in found}
  seeds = sorted({seed for found in places.values() for seed in found})
  about = dict(
    name=f'{len(arms)} arms of finished runs',
    question=f'How do {", ".join(arms)} compare?',
    literature='',
    base=base,
    metric=args.metric,
    lower_is_better=not args.higher,
    match=None,
    seeds=seeds,
    command=shlex.join(['tfm', *args.words]),
    length=first[1].data.length,
    seconds=None,
  )
  # Of a run of a study its arm knows where and when it trained.
  told = {name: {'made': made(found[0][0])} for name, found in groups.items()}
  found = runner.gathered(about, arms, places, told)
  hashes = found['study']['data'].split(', ')
  require(
    len(hashes) == 1,
    f'the runs learnt from different data, by their content hashes {", ".join(hashes)}; compare those of one',
  )
  page = report.write(found, pathlib.Path(args.to))
  print(report.table(found))
  print(f'report: {page}')
  return 0


def made(folder: pathlib.Path) -> list[dict[str, str]]:
  """What the arm of a run keeps of its `makers`; nothing where it is of no study."""
  return runner.about(folder.resolve().parent).get('made', [])


def runs(folder: pathlib.Path) -> list[pathlib.Path]:
  """The runs of a study's folder, or of an arm's, but for those that diverged; of any other folder itself."""
  if (folder / 'checkpoints').is_dir():
    return [folder]
  results = folder / 'results.json'
  order = [arm['name'] for arm in json.loads(results.read_text())['arms']] if results.is_file() else []
  arms = [
    (runner.about(path.parent), path.parent)
    for path in sorted([*folder.glob('arms/*/arm.json'), *folder.glob('arm.json')])
  ]
  found = []
  # As the study has them, its base first.
  for said, arm in sorted(arms, key=lambda pair: [*order, pair[0]['name']].index(pair[0]['name'])):
    seeds = sorted(arm.glob('seed*'), key=lambda seed: int(seed.name.removeprefix('seed')))
    out = [seed for seed in seeds if seed.name.removeprefix('seed') in said.get('diverged', {})]
    if out:
      print_status(f'left out, as they diverged: {", ".join(map(str, out))}')
    found += [seed for seed in seeds if seed not in out and (seed / 'checkpoints').is_dir()]
  return found or [folder]


def named(folder: pathlib.Path) -> tuple[str, str]:
  """What the arm of a run is called, and the study, or whatever the folder above it is of."""
  arm = folder.parent if re.fullmatch(r'seed_?\d+', folder.name) else folder
  return runner.about(arm).get('name', arm.name), (
    arm.parents[1] if arm.parent.name == 'arms' else arm.parent
  ).name


def grouped(folders: list[pathlib.Path]) -> dict[str, list[tuple[pathlib.Path, ConfigDict]]]:
  """The runs and their configs, by arm.

  Raises:
    ValueError: if a folder is no run, or not finished, two runs of an arm have one seed, or two arms one name.
  """
  arms, names = collections.defaultdict(list), {}
  for folder in folders:
    require((folder / 'checkpoints').is_dir(), f'{folder} holds no run; tfm train makes one')
    config = resolve_config(complete(load.checkpoint_metadata(folder)['config']))
    require(
      runner.reached(folder) == config.training.steps,
      f'{folder} has come to step {runner.reached(folder)} of '
      f'{config.training.steps}; the command that made it goes on',
    )
    key = json.dumps(config.to_dict() | dict(seed=None), sort_keys=True)
    twice = [other for other, its in arms[key] if its.seed == config.seed]
    require(
      not twice,
      f'{folder} and {", ".join(map(str, twice))} are one run, of seed {config.seed}; give one of them',
    )
    arms[key].append((folder, config))
    names.setdefault(key, named(folder.resolve()))
  names = {key: name for key, (name, _) in names.items()} | {
    key: f'{above}/{name}'
    for key, (name, above) in names.items()
    if [other for other, _ in names.values()].count(name) > 1
  }
  require(
    len({*names.values()}) == len(names),
    f'two arms are called {max(names.values(), key=list(names.values()).count)!r}; '
    'put the runs into folders of different names',
  )
  return {names[key]: found for key, found in arms.items()}
