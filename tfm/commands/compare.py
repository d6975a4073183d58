"""Compares finished runs, whoever trained them: the report of `tfm ablate`, without training.

  tfm compare runs/rope runs/alibi --to=runs/rope-alibi
  tfm compare runs/*/seed* --base=rope --metric=bits_per_byte --to=runs/all

Runs that differ in nothing but their seed are one arm. An arm is called what its folder is, or the one above where that is
but a seed's. The first is the base unless --base names another.
"""

import argparse
import collections
import json
import pathlib
import re

from tfm import arms as planned
from tfm import config as configs
from tfm import run, trial
from tfm.ablation import report
from tfm.config import require
from tfm.spec import suggest


def arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add('runs', nargs='+', metavar='DIR', help='of a run that tfm train or tfm ablate made')
  add('--to', required=True, metavar='DIR', help='where the report goes')
  add('--base', metavar='ARM', help='that the others are compared with (default: the first)')
  add('--metric', default='loss', metavar='NAME', help='of the validation split, that decides (default: loss)')
  add('--higher', action='store_true', help='more of it is better')


def main(args: argparse.Namespace) -> int:
  groups = grouped([pathlib.Path(text) for text in args.runs])
  base = args.base or next(iter(groups))
  require(base in groups, f'--base={base} is no arm; {suggest(base, groups)}')
  arms, places = {}, {}
  first = groups[base][0]
  for name, found in groups.items():
    config = found[0][1]
    changes = {path: value for path, value in configs.leaves(config) if dict(configs.leaves(first[1])).get(path) != value
               and path != 'seed'}
    arms[name] = planned.cost(name, changes, config, {}, len(found))
    places[name] = {config.seed: place for place, config in found}
  seeds = sorted({seed for found in places.values() for seed in found})
  about = dict(
    name=f'{len(arms)} arms of finished runs', question=f'How do {", ".join(arms)} compare?', literature='', base=base,
    metric=args.metric, lower_is_better=not args.higher, match=None, seeds=seeds, command=f'tfm compare {" ".join(args.runs)}',
    length=first[1].data.length, seconds=None)
  found = trial.gathered(about, arms, places, {name: {} for name in arms})
  hashes = found['study']['data'].split(', ')
  require(len(hashes) == 1, f'the runs learnt from different data, by their content hashes {", ".join(hashes)}; compare those '
                            'of one')
  page = report.write(found, pathlib.Path(args.to))
  print(report.table(found))
  print(f'report: {page}')
  return 0


def grouped(folders: list[pathlib.Path]) -> dict[str, list[tuple[pathlib.Path, configs.ConfigDict]]]:
  """The runs and their configs, by arm.

  Raises:
    ValueError: if a folder is no run, or not finished, two runs of an arm have one seed, or two arms one name.
  """
  arms, names = collections.defaultdict(list), {}
  for folder in folders:
    require((folder / 'checkpoints').is_dir(), f'{folder} holds no run; tfm train makes one')
    config = configs.resolve(configs.complete(run.carried(folder)['config']))
    require(trial.reached(folder) == config.training.steps, f'{folder} has come to step {trial.reached(folder)} of '
                                                            f'{config.training.steps}; the command that made it goes on')
    key = json.dumps(config.to_dict() | dict(seed=None), sort_keys=True)
    twice = [other for other, its in arms[key] if its.seed == config.seed]
    require(not twice, f'{folder} and {", ".join(map(str, twice))} are one run, of seed {config.seed}; give one of them')
    arms[key].append((folder, config))
    name = folder.resolve().parent.name if re.fullmatch(r'seed_?\d+', folder.resolve().name) else folder.resolve().name
    names.setdefault(key, name)
  require(len({*names.values()}) == len(names), f'two arms are called {max(names.values(), key=list(names.values()).count)!r}; '
                                                'put the runs into folders of different names')
  return {names[key]: found for key, found in arms.items()}
