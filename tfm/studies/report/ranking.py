"""The results of a study, checked and ranked: means, comparisons, verdicts and what did not finish."""

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from tfm.studies import statistics
from tfm.studies.statistics import Comparison, Summary


STUDY = ('name', 'question', 'literature', 'base', 'metric', 'lower_is_better', 'match', 'seeds')
ARM = ('name', 'changes', 'matched', 'error', 'diverged')
SPLITS = ('train', 'validation')


@dataclasses.dataclass(frozen=True)
class Row:
  """One arm.

  Attributes:
    rank: from 1, the best; None for an arm without a value.
    index: of the arm in the study; it determines the colour.
    values: of the study's metric, by finished seed.
    notes: what did not finish, and why.
    compared_with: the arm that it is compared with: itself for a base; None without one.
    has_started: whether any seed has started.
  """

  rank: int | None
  index: int
  name: str
  values: Mapping[int, float]
  summary: Summary | None
  comparison: Comparison | None
  notes: tuple[str, ...]
  compared_with: str | None
  has_started: bool = True

  @property
  def is_base(self) -> bool:
    """Whether other arms are compared with it."""
    return self.compared_with == self.name

  @property
  def verdict(self) -> str:
    """'base', 'better', 'worse', 'no difference shown', 'not compared', 'did not finish', or 'not trained
    yet'.
    """
    return (
      'not trained yet'
      if not self.has_started
      else 'did not finish'
      if self.summary is None
      else 'base'
      if self.is_base
      else self.comparison.verdict
      if self.comparison
      else 'not compared'
    )


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
  """The scalar metrics, or those with values at each x, in the order of the results."""
  return list(dict.fromkeys(v['metric'] for v in results['values'] if (v['x'] is not None) == by_x))


def is_finite(value: float | None) -> bool:
  """Whether there is a value, and it is finite."""
  return value is not None and math.isfinite(value)


def diverged_runs(results: dict) -> set[tuple[str, int]]:
  """(arm, seed) of the runs that diverged; means exclude them."""
  return {(arm['name'], seed) for arm in results['arms'] for seed in arm['diverged']}


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


def _group_by_x(results, entries: Iterable[tuple], excluded=None):
  groups = {arm['name']: collections.defaultdict(dict) for arm in results['arms']}
  excluded = diverged_runs(results) if excluded is None else excluded
  for arm, seed, x, value in sorted(entries, key=lambda entry: entry[2]):
    if is_finite(value) and (arm, seed) not in excluded:
      groups[arm][seed][x] = value
  return {arm: dict(seeds) for arm, seeds in groups.items()}


def rank_arms(results: dict) -> list[Row]:
  """The arms, best mean first, those without a value last.

  Raises:
    ValueError: as `check_results`.
  """
  check_results(results)
  study = results['study']
  values = scalar_values(results, study['metric'])
  finished = {arm: of_arm for arm, of_arm in values.items() if of_arm}
  bases = {name: study.get('against', {}).get(name, study['base']) for name in values}
  compared = statistics.compare_arms(
    finished, {name: base for name, base in bases.items() if base in finished}, study['lower_is_better']
  )
  means = {arm: sum(of_arm.values()) / len(of_arm) for arm, of_arm in finished.items()}
  order = sorted(means, key=means.get, reverse=not study['lower_is_better'])
  rows = []
  for index, arm in enumerate(results['arms']):
    name = arm['name']
    rows.append(
      Row(
        order.index(name) + 1 if name in order else None,
        index,
        name,
        values[name],
        statistics.summarize(list(values[name].values())) if name in finished else None,
        compared.get(name),
        tuple(list_notes(results, arm, values[name])),
        bases[name],
        bool(
          values[name] or arm['error'] or arm['diverged'] or {*study['seeds']} - {*arm.get('untrained', ())}
        ),
      )
    )
  return sorted(rows, key=lambda row: row.rank or math.inf)


def list_notes(results: dict, arm: dict, values: Mapping[int, float]) -> Iterable[str]:
  """What did not finish in an arm, and other remarks."""
  if arm['error']:
    yield f'failed: {first_line(arm["error"])}'
  if arm['diverged']:
    yield f'diverged at {format_seeds(arm["diverged"])}' + (f': {arm["why"]}' if arm.get('why') else '')
  untrained = arm.get('untrained', ())
  missing = [
    seed
    for seed in results['study']['seeds']
    if seed not in values and seed not in (*arm['diverged'], *untrained)
  ]
  if untrained and values:
    yield f'{format_seeds(untrained)} not trained yet'
  if missing and not arm['error']:
    yield f'no finite {results["study"]["metric"]} of {format_seeds(missing)}'
  tried = arm.get('rates') or {}
  rates = sorted({*tried.get('reached', {}), *tried.get('diverged', {})}, key=float)
  if len(rates) > 1 and arm.get('rate') is not None and f'{arm["rate"]:g}' in (rates[0], rates[-1]):
    candidates = ', '.join(rates)
    yield (
      f'the best learning rate is {arm["rate"]:g}, at an end of ({candidates}); a wider range may be better'
    )
  yield from arm.get('notes', ())


def decimals(rows: Sequence[Row]) -> int:
  """The number of decimals that shows two digits of the median deviation over seeds."""
  return decimals_for([row.summary for row in rows if row.summary])


def decimals_for(summaries: Sequence[Summary]) -> int:
  """As `decimals`, for any metric; without deviations, from the spread of the means, or from their size."""
  deviations = sorted(s.deviation for s in summaries if s.deviation)
  means = [s.mean for s in summaries]
  scale = (
    deviations[len(deviations) // 2]
    if deviations
    else (max(means) - min(means)) / 10 or max(map(abs, means)) / 100 or 1
  )
  return min(max(1 - math.floor(math.log10(scale)), 0), 6)


def format_number(value: float, places: int, sign: bool = False) -> str:
  """'−1,234.5': with a true minus sign and thousands separators; with `sign` also a plus sign."""
  return f'{value:{"+" * sign},.{places}f}'.replace('-', '−')


def join_names(names: Sequence[str]) -> str:
  """'a, b and c'; of more than eight names the first six and the number of the others."""
  if len(names) > 8:
    names = [*names[:6], f'{len(names) - 6} more']
  return ' and '.join(filter(None, (', '.join(names[:-1]), *names[-1:])))


def format_seeds(numbers: Sequence[int]) -> str:
  """'seed 1', 'seeds 1, 2'."""
  return f'seed{"s" * (len(numbers) > 1)} {", ".join(map(str, numbers))}'


def first_line(error: str) -> str:
  """The first line of an error's text."""
  return error.strip().splitlines()[0] if error.strip() else 'no message'


def first_duplicate(items: Iterable):
  """The first item that occurs a second time; None if there is none."""
  seen = set()
  for item in items:
    if item in seen:
      return item
    seen.add(item)
