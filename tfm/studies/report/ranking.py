"""A results table, checked and put in order: who is ahead, by how much, and what did not finish."""

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from tfm.studies import statistics
from tfm.studies.statistics import Comparison, Summary, p_value


STUDY = ('name', 'question', 'literature', 'base', 'metric', 'lower_is_better', 'match', 'seeds')
ARM = ('name', 'changes', 'matched', 'error', 'diverged')
SPLITS = ('train', 'validation')


@dataclasses.dataclass(frozen=True)
class Row:
  """One arm.

  Attributes:
    rank: from 1, the best; None for an arm without a value.
    place: of the arm in the study, which gives it its colour.
    values: of the metric, by seed: those that finished.
    notes: whatever did not finish, and why.
    of: the arm that it is compared with: itself, if it is a base; None without one.
    begun: whether any seed of it was.
  """

  rank: int | None
  place: int
  name: str
  values: Mapping[int, float]
  summary: Summary | None
  comparison: Comparison | None
  notes: tuple[str, ...]
  of: str | None
  begun: bool = True

  @property
  def base(self) -> bool:
    return self.of == self.name

  @property
  def verdict(self) -> str:
    """'base', 'better', 'worse', 'no difference shown', 'not compared', 'did not finish', or 'not trained yet'."""
    return (
      'not trained yet'
      if not self.begun
      else 'did not finish'
      if self.summary is None
      else 'base'
      if self.base
      else self.comparison.verdict
      if self.comparison
      else 'not compared'
    )


def check(results: dict) -> None:
  """Whether the table can be read at all.

  Raises:
    ValueError: for a field that is missing, two arms of one name, a base, an arm or a split that is none, a value that
      stands twice, or a metric without a single finite value.
  """
  for key in ('study', 'arms', 'values', 'curves'):
    if key not in results:
      raise ValueError(f'results lack {key!r}; they hold {", ".join(results) or "nothing"}')
  study, arms = results['study'], results['arms']
  for kind, fields, things in (('study', STUDY, [study]), ('arm', ARM, arms)):
    for thing in things:
      if lacking := [field for field in fields if field not in thing]:
        raise ValueError(f'{kind} {thing.get("name", "")!r} lacks {", ".join(lacking)}')
  names = [arm['name'] for arm in arms]
  if twice := repeated(names):
    raise ValueError(f'two arms are named {twice!r}; each needs a name of its own')
  for name, base in {'base': study['base'], **study.get('against', {})}.items():
    if base is not None and base not in names:
      raise ValueError(f'study.{name}={base!r} is no arm; the arms are {", ".join(names)}')
  for key, fields in (
    ('values', ('arm', 'seed', 'metric', 'x')),
    ('curves', ('arm', 'seed', 'split', 'step')),
  ):
    for entry in results[key]:
      if entry['arm'] not in names:
        raise ValueError(f'{key} speak of {entry["arm"]!r}, which is no arm; the arms are {", ".join(names)}')
    if twice := repeated(tuple(entry[field] for field in fields) for entry in results[key]):
      raise ValueError(f'{key} hold {dict(zip(fields, twice))} twice; each may stand once')
  if unknown := {entry['split'] for entry in results['curves']} - {*SPLITS}:
    raise ValueError(f'curves have the split {min(unknown)!r}; it may be {" or ".join(SPLITS)}')
  if not any(plain(results, study['metric']).values()):
    errors = [f'{arm["name"]}: {first_line(arm["error"])}' for arm in arms if arm['error']]
    raise ValueError(
      f'no arm has a finite value of study.metric={study["metric"]!r} without an x; there are values of '
      f'{", ".join(metrics(results, by_x=False)) or "no metric"}'
      + f', and errors of {"; ".join(errors)}'
      * bool(errors)
    )


def metrics(results: dict, by_x: bool) -> list[str]:
  """The metrics that are plain numbers, or those that have a value at each x, in their order."""
  return list(dict.fromkeys(v['metric'] for v in results['values'] if (v['x'] is not None) == by_x))


def finite(value: float | None) -> bool:
  return value is not None and math.isfinite(value)


def diverged(results: dict) -> set[tuple[str, int]]:
  """(arm, seed) of what diverged; no mean takes it in."""
  return {(arm['name'], seed) for arm in results['arms'] for seed in arm['diverged']}


def plain(results: dict, metric: str) -> dict[str, dict[int, float]]:
  """Of a metric without x: arm → seed → value, of every arm, where it finished and is finite."""
  found, out = {arm['name']: {} for arm in results['arms']}, diverged(results)
  for v in results['values']:
    if v['metric'] == metric and v['x'] is None and finite(v['value']) and (v['arm'], v['seed']) not in out:
      found[v['arm']][v['seed']] = v['value']
  return found


def lines(results: dict, metric: str) -> dict[str, dict[int, dict[float, float]]]:
  """Of a metric with x: arm → seed → x → value, of every arm, x rising, where it finished and is finite."""
  return traced(
    results,
    (
      (v['arm'], v['seed'], v['x'], v['value'])
      for v in results['values']
      if v['metric'] == metric and v['x'] is not None
    ),
  )


def curves(results: dict, split: str) -> dict[str, dict[int, dict[float, float]]]:
  """As `lines`, of the loss by the step; those that diverged are there too, up to where they did."""
  return traced(
    results,
    ((c['arm'], c['seed'], c['step'], c['loss']) for c in results['curves'] if c['split'] == split),
    out=(),
  )


def traced(results, entries: Iterable[tuple], out=None):
  found = {arm['name']: collections.defaultdict(dict) for arm in results['arms']}
  out = diverged(results) if out is None else out
  for arm, seed, x, value in sorted(entries, key=lambda entry: entry[2]):
    if finite(value) and (arm, seed) not in out:
      found[arm][seed][x] = value
  return {arm: dict(seeds) for arm, seeds in found.items()}


def ranked(results: dict) -> list[Row]:
  """The arms, best mean first and at the end what did not finish; the results are checked before.

  Raises:
    ValueError: as `check`.
  """
  check(results)
  study = results['study']
  values = plain(results, study['metric'])
  finished = {arm: of_arm for arm, of_arm in values.items() if of_arm}
  bases = {name: study.get('against', {}).get(name, study['base']) for name in values}
  compared = statistics.compare(
    finished, {name: base for name, base in bases.items() if base in finished}, study['lower_is_better']
  )
  means = {arm: sum(of_arm.values()) / len(of_arm) for arm, of_arm in finished.items()}
  order = sorted(means, key=means.get, reverse=not study['lower_is_better'])
  rows = []
  for place, arm in enumerate(results['arms']):
    name = arm['name']
    rows.append(
      Row(
        order.index(name) + 1 if name in order else None,
        place,
        name,
        values[name],
        statistics.summary(list(values[name].values())) if name in finished else None,
        compared.get(name),
        tuple(notes(results, arm, values[name])),
        bases[name],
        bool(
          values[name] or arm['error'] or arm['diverged'] or {*study['seeds']} - {*arm.get('untrained', ())}
        ),
      )
    )
  return sorted(rows, key=lambda row: row.rank or math.inf)


def notes(results: dict, arm: dict, values: Mapping[int, float]) -> Iterable[str]:
  """What of an arm did not finish, and what else is to be told of it."""
  if arm['error']:
    yield f'failed: {first_line(arm["error"])}'
  if arm['diverged']:
    yield f'diverged at {seeds(arm["diverged"])}' + (f': {arm["why"]}' if arm.get('why') else '')
  untrained = arm.get('untrained', ())
  missing = [
    seed
    for seed in results['study']['seeds']
    if seed not in values and seed not in (*arm['diverged'], *untrained)
  ]
  if untrained and values:
    yield f'{seeds(untrained)} not trained yet'
  if missing and not arm['error']:
    yield f'no finite {results["study"]["metric"]} of {seeds(missing)}'
  tried = arm.get('rates') or {}
  rates = sorted({*tried.get('reached', {}), *tried.get('diverged', {})}, key=float)
  if len(rates) > 1 and arm.get('rate') is not None and f'{arm["rate"]:g}' in (rates[0], rates[-1]):
    yield f'the best learning rate is {arm["rate"]:g}, at an end of those tried ({", ".join(rates)}): a wider range may do better'
  yield from arm.get('notes', ())


def answer(results: dict, rows: Sequence[Row]) -> str:
  """What the numbers say, in one sentence."""
  study = results['study']
  metric, best = study['metric'], rows[0]
  extreme = 'lowest' if study['lower_is_better'] else 'highest'
  ahead = f'the {extreme} mean {metric} is that of {best.name}, {number(best.summary.mean, decimals(rows))}'
  parts = []
  for base in dict.fromkeys(row.of for row in sorted(rows, key=lambda row: row.place)):
    parts += beside(base, rows, metric, ahead)
  if gone := [row.name for row in rows if row.verdict == 'did not finish']:
    parts.append(f'{listed(gone)} did not finish')
  if left := [row.name for row in rows if row.verdict == 'not trained yet']:
    parts.append(f'{listed(left)} {"is" if len(left) == 1 else "are"} not trained yet')
  parts = [*dict.fromkeys(parts)]
  sentence = '; '.join(parts)
  # A name keeps its letters, a word begins the sentence with a capital.
  return (
    sentence if any(sentence.startswith(row.name) for row in rows) else sentence[0].upper() + sentence[1:]
  ) + '.'


def beside(base: str | None, rows: Sequence[Row], metric: str, ahead: str) -> list[str]:
  """What the numbers say of those rows that are compared with a base, in parts of a sentence; `ahead` is one, too."""
  of = {
    verdict: [row.name for row in rows if row.of == base and row.verdict == verdict]
    for verdict in ('better', 'worse', 'no difference shown', 'not compared')
  }
  if base is None:
    return [f'{ahead}, and no base was named to compare with']
  if of['better'] or of['worse']:
    parts = [
      f'{listed(of[verdict])} {"is" if len(of[verdict]) == 1 else "are"} {verdict} than {base} in {metric}'
      for verdict in ('better', 'worse')
      if of[verdict]
    ]
    if of['no difference shown']:
      parts.append(f'for {listed(of["no difference shown"])} no difference is shown')
  elif of['no difference shown']:
    of_arms = [row.comparison for row in rows if row.name in of['no difference shown']]
    comparisons = sum(row.comparison is not None and row.comparison.difference is not None for row in rows)
    few = all(c.reachable > statistics.SIGNIFICANT for c in of_arms)
    least = min(c.reachable if few else c.corrected for c in of_arms)
    most = statistics.count(max(c.difference.n for c in of_arms), 'seed')
    alike = of['no difference shown']
    whole = f'any of the {len(alike)} other arms' if 4 < len(alike) == len(rows) - 1 else listed(alike)
    parts = [
      f'no difference from {base} in {metric} is shown for {whole}'
      + (
        f", and with so few seeds none can be, whatever its size (with {most} Holm's p cannot be less than "
        f'{p_value(least)[4:]}; {statistics.needed(comparisons)} seeds could show one)'
        if few
        else f' ({p_value(least)} at the least)'
      ),
      ahead,
    ]
  else:
    parts = [f'nothing could be compared with {base}', ahead]
  if of['not compared'] and len(parts) == 1:
    parts.append(f'{listed(of["not compared"])} could not be compared')
  return parts


def decimals(rows: Sequence[Row]) -> int:
  """As many as show two digits of the usual deviation over seeds."""
  return digits([row.summary for row in rows if row.summary])


def digits(summaries: Sequence[Summary]) -> int:
  """As `decimals`, of any metric: where no arm has a deviation, of the spread of the means, or of their size."""
  deviations = sorted(s.deviation for s in summaries if s.deviation)
  means = [s.mean for s in summaries]
  usual = (
    deviations[len(deviations) // 2]
    if deviations
    else (max(means) - min(means)) / 10 or max(map(abs, means)) / 100 or 1
  )
  return min(max(1 - math.floor(math.log10(usual)), 0), 6)


def number(value: float, places: int, sign: bool = False) -> str:
  """With a true minus, thousands by commas, and a plus where a sign is asked for."""
  return f'{value:{"+" * sign},.{places}f}'.replace('-', '−')


def listed(names: Sequence[str]) -> str:
  """'a, b and c'; of more than eight the first six and how many more."""
  if len(names) > 8:
    names = [*names[:6], f'{len(names) - 6} more']
  return ' and '.join(filter(None, (', '.join(names[:-1]), *names[-1:])))


def seeds(numbers: Sequence[int]) -> str:
  return f'seed{"s" * (len(numbers) > 1)} {", ".join(map(str, numbers))}'


def first_line(error: str) -> str:
  return error.strip().splitlines()[0] if error.strip() else 'no message'


def repeated(things: Iterable):
  """The first that stands twice, or None."""
  seen = set()
  for thing in things:
    if thing in seen:
      return thing
    seen.add(thing)
