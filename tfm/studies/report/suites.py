"""A study with tasks in its report: every series over all tasks together."""

import functools
import math
import operator
from collections.abc import Mapping

import numpy as np

from tfm.studies.report.values import count_diverged, scalar_values
from tfm.studies.report.wording import format_number, join_names
from tfm.studies.statistics.suites import (
  DRAWS,
  Aggregate,
  aggregate,
  interquartile_mean,
  probability_of_improvement,
)
from tfm.studies.study import split_last


def list_scores(results: dict) -> dict[str, tuple[tuple[float, ...], ...]]:
  """The scores of the runs of each series at each task, of the series that have all seeds at all tasks; a run
  that diverged has the worst score.
  """
  study, found = results['study'], {}
  if not (tasks := study.get('tasks')):
    return {}
  values, diverged = scalar_values(results, study['metric']), count_diverged(results, study['metric'])
  for arm in map(operator.itemgetter('name'), results['arms']):
    series, task = split_last(arm)
    scores = (*values[arm].values(), *[worst_score(study)] * diverged[arm])
    if len(scores) == len(study['seeds']):
      found.setdefault(series, {})[task] = scores
  return {
    series: tuple(of_series[task] for task in tasks)
    for series, of_series in found.items()
    if len(of_series) == len(tasks)
  }


def worst_score(study: Mapping) -> float:
  """Of a loss infinity; of a metric that is better if higher, such as a share, 0."""
  return math.inf if study['lower_is_better'] else 0.0


def compute_aggregates(results: dict) -> dict[str, tuple[Aggregate, Aggregate | None]]:
  """Series → its interquartile mean, and its probability of improvement over the base (which has none)."""
  scores = list_scores(results)
  base = split_last(results['study']['base'])[0] if results['study']['base'] else None
  return _aggregate(tuple(scores.items()), base, results['study']['lower_is_better'])


@functools.lru_cache(maxsize=1)  # the page, its text and the terminal show the same numbers
def _aggregate(scores, base, lower_is_better):
  by_series = {series: [np.array(runs) for runs in of_tasks] for series, of_tasks in scores}
  sign = -1 if lower_is_better else 1
  signed = {series: [sign * runs for runs in of_tasks] for series, of_tasks in by_series.items()}
  return {
    series: (
      aggregate(interquartile_mean, of_tasks),
      None
      if series == base or base not in signed
      else aggregate(probability_of_improvement, signed[series], signed[base]),
    )
    for series, of_tasks in by_series.items()
  }


def describe_suite(results: dict) -> list[str]:
  """Parts of the answer: the best series over all tasks, and whether others improve on the base."""
  found, study = compute_aggregates(results), results['study']
  if not study.get('tasks'):
    return []
  parts = []
  if found:
    choose = min if study['lower_is_better'] else max
    best = choose(found, key=lambda series: found[series][0].value)
    parts.append(
      f'over {len(study["tasks"])} tasks {best} has the best interquartile mean of {study["metric"]}, '
      f'{format_aggregate(found[best][0])}'
    )
  for series, (_, improvement) in found.items():
    if improvement is not None:
      base = split_last(study['base'])[0]
      parts.append(
        f'a run of {series} is better than one of {base} with probability {format_aggregate(improvement)}'
      )
  series = dict.fromkeys(split_last(arm['name'])[0] for arm in results['arms'])
  if missing := [name for name in series if name not in found]:
    parts.append(f'no aggregate of {join_names(missing)}, without results of some runs')
  return parts


def explain_suite(results: dict) -> list[str]:
  """A sentence on how tasks are aggregated, and one on runs that diverged."""
  study = results['study']
  if not compute_aggregates(results):
    return []
  lines = [
    'Over tasks: the mean of the middle half of all runs, and the probability that a run is better than one '
    f'of the base, as a mean over tasks (Agarwal et al. 2021); 95 % intervals of {DRAWS:,} draws of the runs '
    'of each task, which are too narrow with few runs and are not corrected for the number of series.'
  ]
  if any(count_diverged(results, study['metric']).values()):
    worst = 'an infinite loss' if study['lower_is_better'] else '0'
    lines.append(f'Over tasks a run that diverged counts as {worst}.')
  return lines


def tabulate_suite(results: Mapping) -> list[tuple[str, list[str]]]:
  """Series → its interquartile mean, and its probability of improvement."""
  return [
    (series, [format_aggregate(mean), '–' if improvement is None else format_aggregate(improvement)])
    for series, (mean, improvement) in compute_aggregates(results).items()
  ]


def format_aggregate(found: Aggregate) -> str:
  """'0.81 [0.75, 0.87]'."""
  numbers = (found.value, found.low, found.high)
  value, low, high = (format_number(x, 3) if math.isfinite(x) else '∞' for x in numbers)
  return f'{value} [{low}, {high}]'
