"""Finished runs in folders: which there are, which form one arm, and what their study recorded."""

import collections
import json
import pathlib
import re
from collections.abc import Iterable
from typing import Any

from ml_collections import ConfigDict

from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.errors import parsing, read_json_object, require
from tfm.studies import store


def find_runs(folder: pathlib.Path) -> list[pathlib.Path]:
  """The runs in the folder of a study or an arm, also those that diverged; any other folder itself."""
  if (folder / 'checkpoints').is_dir():
    return [folder]
  results = folder / 'results.json'
  order = []
  if results.is_file():
    with parsing(results, 'the results of a study'):
      order = [arm['name'] for arm in read_json_object(results)['arms']]
  arms = [
    (store.read_arm(path.parent), path.parent)
    for path in sorted([*folder.glob('arms/*/arm.json'), *folder.glob('arm.json')])
  ]
  runs = []
  # In the order of the study, its base first.
  for _, arm in sorted(arms, key=lambda pair: [*order, pair[0]['name']].index(pair[0]['name'])):
    seeds = [seed for seed in arm.glob('seed*') if seed.name.removeprefix('seed').isdecimal()]
    seeds.sort(key=lambda seed: int(seed.name.removeprefix('seed')))
    runs += [seed for seed in seeds if find_divergence(seed) or (seed / 'checkpoints').is_dir()]
  return runs or [folder]


def group_by_arm(folders: list[pathlib.Path]) -> dict[str, list[tuple[pathlib.Path, ConfigDict]]]:
  """The runs and their configs, by arm.

  Raises:
    ValueError: if a folder is not a finished run, two runs of an arm have the same seed, or two arms the
      same name.
  """
  from tfm.runs import load  # imports JAX
  from tfm.runs.run_dir import RunDir

  arms, names = collections.defaultdict(list), {}
  for folder in folders:
    has_diverged = find_divergence(folder) is not None
    require(
      has_diverged or (folder / 'checkpoints').is_dir(),
      f'{folder} is not the folder of a run; use one that tfm train or tfm ablate wrote',
    )
    # A run that diverged may have no checkpoint.
    fields = (
      read_json_object(folder / 'config.json') if has_diverged else load.checkpoint_metadata(folder)['config']
    )
    config = resolve_config(complete(fields))
    require(
      has_diverged or RunDir(config, folder).is_finished(),
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


def list_metrics(folders: Iterable[pathlib.Path]) -> list[str]:
  """The metrics of the last validations of some runs, and the scalar ones that a study measured on them."""
  names = {}
  for folder in folders:
    measured = [value for values in store.read_measured(folder).values() for value in values]
    names |= dict.fromkeys(store.final_metrics(folder))
    names |= dict.fromkeys(value['metric'] for value in measured if value['x'] is None)
  return list(names)


def read_provenance(run_dir: pathlib.Path) -> list[dict[str, str]]:
  """Machines, versions and dates that a study recorded for a run's arm; empty for other runs."""
  return _read_arm(run_dir).get('made', [])


def find_divergence(run_dir: pathlib.Path) -> str | None:
  """Why a run of a study diverged; None if it did not."""
  return _read_arm(run_dir).get('diverged', {}).get(run_dir.name.removeprefix('seed'))


def _read_arm(run_dir: pathlib.Path) -> dict[str, Any]:
  return store.read_arm(run_dir.resolve().parent)


def arm_and_study_name(folder: pathlib.Path) -> tuple[str, str]:
  """The name of a run's arm, and of its study or the folder above the arm."""
  arm = folder.parent if re.fullmatch(r'seed_?\d+', folder.name) else folder
  return store.read_arm(arm).get('name', arm.name), (
    arm.parents[1] if arm.parent.name == 'arms' else arm.parent
  ).name
