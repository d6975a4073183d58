"""The results of a study: their structure, checked, and their values by arm and seed."""

import collections
import math
from collections.abc import Iterable, Mapping

import numpy as np

from tfm.studies.report.wording import first_line


STUDY = ('name', 'question', 'literature', 'base', 'metric', 'lower_is_better', 'match', 'seeds')
ARM = ('name', 'changes', 'matched', 'error', 'diverged')
SPLITS = ('train', 'validation')
# The end of the names of metrics of parts of the evaluation text, which are neither plotted nor tabulated.
PART = '_in_part'


def check_results(results: dict) -> None:
  """Checks the structure of the results.

  Raises:
    ValueError: for a missing field, two arms of the same name, an unknown base, arm or split, a duplicate
      value, or a metric without any finite value.
  """
  for key in ('study', 'arms', 'values', 'curves'):
    if key not in results:
      raise ValueError(f'results lack {key!r}; they have {", ".join(results) or "nothing"}')
  study, arms = results['study'], results['arms']
  for kind, fields, records in (('study', STUDY, [study]), ('arm', ARM, arms)):
    for record in records:
      if missing := [field for field in fields if field not in record]:
        raise ValueError(f'{kind} {record.get("name", "")!r} lacks {", ".join(missing)}')
  names = [arm['name'] for arm in arms]
  if duplicate := first_duplicate(names):
    raise ValueError(f'two arms have the name {duplicate!r}; use different names')
  for name, base in {'base': study['base'], **study.get('against', {})}.items():
    if base is not None and base not in names:
      raise ValueError(f'study.{name}={base!r} is not an arm; the arms are {", ".join(names)}')
  for key, fields in (
    ('values', ('arm', 'seed', 'metric', 'x')),
    ('curves', ('arm', 'seed', 'split', 'step')),
  ):
    for entry in results[key]:
      if entry['arm'] not in names:
        raise ValueError(f'{key} contain the unknown arm {entry["arm"]!r}; the arms are {", ".join(names)}')
    if duplicate := first_duplicate(tuple(entry[field] for field in fields) for entry in results[key]):
      raise ValueError(f'{key} contain {dict(zip(fields, duplicate))} twice; remove one of them')
  if unknown := {entry['split'] for entry in results['curves']} - {*SPLITS}:
    raise ValueError(f'curves contain the unknown split {min(unknown)!r}; use {" or ".join(SPLITS)}')
  if not any(scalar_values(results, study['metric']).values()):
    errors = [f'{arm["name"]}: {first_line(arm["error"])}' for arm in arms if arm['error']]
    raise ValueError(
      f'no arm has a finite scalar value of study.metric={study["metric"]!r}; the results have values of '
      f'{", ".join(metric_names(results, by_x=False)) or "no metric"}'
      + f', and errors of {"; ".join(errors)}'
      * bool(errors)
    )


def metric_names(results: dict, by_x: bool) -> list[str]:
  """The scalar metrics, or those with values at each x but parts of the text, in the order of the results."""
  names = dict.fromkeys(v['metric'] for v in results['values'] if (v['x'] is not None) == by_x)
  return [name for name in names if not name.endswith(PART)]


def is_finite(value: float | None) -> bool:
  """Whether there is a value, and it is finite."""
  return value is not None and math.isfinite(value)


def diverged_runs(results: dict) -> set[tuple[str, int]]:
  """(arm, seed) of the runs that diverged; means exclude them."""
  return {(arm['name'], seed) for arm in results['arms'] for seed in arm['diverged']}


def count_diverged(results: dict, metric: str) -> dict[str, int]:
  """Arm → its number of runs that diverged, or whose scalar metric is infinite or undefined."""
  runs = diverged_runs(results) | {
    (v['arm'], v['seed'])
    for v in results['values']
    if v['metric'] == metric and v['x'] is None and v['value'] is not None and not is_finite(v['value'])
  }
  return {arm['name']: sum(name == arm['name'] for name, _ in runs) for arm in results['arms']}


def scalar_values(results: dict, metric: str) -> dict[str, dict[int, float]]:
  """A scalar metric: arm → seed → value, for all arms, with the finite values of finished runs."""
  values, diverged = {arm['name']: {} for arm in results['arms']}, diverged_runs(results)
  for v in results['values']:
    run = v['arm'], v['seed']
    if v['metric'] == metric and v['x'] is None and is_finite(v['value']) and run not in diverged:
      values[v['arm']][v['seed']] = v['value']
  return values


def values_by_x(results: dict, metric: str) -> dict[str, dict[int, dict[float, float]]]:
  """A metric with x: arm → seed → x → value, for all arms, x ascending, with the finite values of finished
  runs.
  """
  return _group_by_x(
    results,
    (
      (v['arm'], v['seed'], v['x'], v['value'])
      for v in results['values']
      if v['metric'] == metric and v['x'] is not None
    ),
  )


def loss_curves(results: dict, split: str) -> dict[str, dict[int, dict[float, float]]]:
  """As `values_by_x`, for the loss by step; diverged runs are included up to their last finite value."""
  return _group_by_x(
    results,
    ((c['arm'], c['seed'], c['step'], c['loss']) for c in results['curves'] if c['split'] == split),
    excluded=(),
  )


def mean_curves(results: dict) -> Mapping[str, Mapping[float, float]]:
  """Arm → step → validation loss, the mean over finished seeds at the steps that all have, of two steps or
  more.
  """
  diverged = {arm['name']: arm['diverged'] for arm in results['arms']}
  curves = {}
  for arm, seeds in loss_curves(results, 'validation').items():
    lines = [line for seed, line in seeds.items() if seed not in diverged[arm]]
    steps = sorted(set.intersection(*map(set, lines))) if lines else []
    if len(steps) > 1:
      curves[arm] = {step: float(np.mean([line[step] for line in lines])) for step in steps}
  return curves


def arms_ended_early(results: dict) -> set[str]:
  """The arms of which all runs ended before the last step, by `training.stop_when`."""
  planned = {arm['name']: arm.get('steps', 0) for arm in results['arms']}
  taken = scalar_values(results, 'steps')
  return {arm for arm, of_seeds in taken.items() if of_seeds and max(of_seeds.values()) < planned[arm]}


def _group_by_x(results, entries: Iterable[tuple], excluded=None):
  groups = {arm['name']: collections.defaultdict(dict) for arm in results['arms']}
  excluded = diverged_runs(results) if excluded is None else excluded
  for arm, seed, x, value in sorted(entries, key=lambda entry: entry[2]):
    if is_finite(value) and (arm, seed) not in excluded:
      groups[arm][seed][x] = value
  return {arm: dict(seeds) for arm, seeds in groups.items()}


def first_duplicate(items: Iterable):
  """The first item that occurs a second time; None if there is none."""
  seen = set()
  for item in items:
    if item in seen:
      return item
    seen.add(item)
