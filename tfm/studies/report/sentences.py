"""The sentences of a report: the answer, the explanation of the statistics, the facts and the origin."""

import datetime
from collections.abc import Sequence

from tfm.studies import statistics
from tfm.studies.report.ranking import Row, decimals, format_number, join_names
from tfm.studies.statistics import format_count, format_p


def answer_question(results: dict, rows: Sequence[Row]) -> str:
  """What the results show, in one sentence."""
  study = results['study']
  metric, best = study['metric'], rows[0]
  extreme = 'lowest' if study['lower_is_better'] else 'highest'
  leader = (
    f'the {extreme} mean {metric} is that of {best.name}, {format_number(best.summary.mean, decimals(rows))}'
  )
  parts = []
  for base in dict.fromkeys(row.compared_with for row in sorted(rows, key=lambda row: row.index)):
    parts += _describe_comparisons(base, rows, metric, leader)
  if failed := [row.name for row in rows if row.verdict == 'did not finish']:
    parts.append(f'{join_names(failed)} did not finish')
  if untrained := [row.name for row in rows if row.verdict == 'not trained yet']:
    parts.append(f'{join_names(untrained)} {"is" if len(untrained) == 1 else "are"} not trained yet')
  sentence = '; '.join(dict.fromkeys(parts))
  # A word at the start is capitalized, the name of an arm is not changed.
  if not any(sentence.startswith(row.name) for row in rows):
    sentence = sentence[0].upper() + sentence[1:]
  return sentence + '.'


def _describe_comparisons(base: str | None, rows: Sequence[Row], metric: str, leader: str) -> list[str]:
  """Parts of the answer: the rows that are compared with one base; `leader` names the best mean."""
  if base is None:
    return [f'{leader}, and the study has no base to compare with']
  by_verdict = {
    verdict: [row.name for row in rows if row.compared_with == base and row.verdict == verdict]
    for verdict in ('better', 'worse', 'no difference shown', 'not compared')
  }
  undecided = by_verdict['no difference shown']
  if by_verdict['better'] or by_verdict['worse']:
    parts = [
      f'{join_names(names)} {"is" if len(names) == 1 else "are"} {verdict} than {base} in {metric}'
      for verdict in ('better', 'worse')
      if (names := by_verdict[verdict])
    ]
    if undecided:
      parts.append(f'for {join_names(undecided)} no difference is shown')
  elif undecided:
    comparisons = [row.comparison for row in rows if row.name in undecided]
    total = sum(row.comparison is not None and row.comparison.difference is not None for row in rows)
    too_few = all(c.reachable > statistics.SIGNIFICANT for c in comparisons)
    least = min(c.reachable if too_few else c.corrected for c in comparisons)
    seeds = format_count(max(c.difference.n for c in comparisons), 'seed')
    all_others = 4 < len(undecided) == len(rows) - 1
    names = f'any of the {len(undecided)} other arms' if all_others else join_names(undecided)
    parts = [
      f'no difference from {base} in {metric} is shown for {names}'
      + (
        f", and so few seeds cannot show one, whatever its size (with {seeds} Holm's p is at least "
        f'{format_p(least)[4:]}; {statistics.seeds_needed(total)} seeds could show one)'
        if too_few
        else f' (smallest {format_p(least)})'
      ),
      leader,
    ]
  else:
    parts = [f'nothing could be compared with {base}', leader]
  if by_verdict['not compared'] and len(parts) == 1:
    parts.append(f'{join_names(by_verdict["not compared"])} could not be compared')
  return parts


def explain_statistics(results: dict, rows: Sequence[Row]) -> list[str]:
  """A sentence each on the noise floor, the intervals, the test, and what the means leave out."""
  study, places = results['study'], decimals(rows)
  lines = []
  for base in (row for row in rows if row.is_base and row.summary):
    s = base.summary
    if s.deviation is not None:
      lines.append(
        f'Noise floor: the {s.n} seeds of {base.name} have a standard deviation of '
        f'{format_number(s.deviation, places)} and range from {format_number(s.minimum, places)} to '
        f'{format_number(s.maximum, places)}.'
      )
    else:
      lines.append(f'Noise floor: unknown, because {base.name} finished with one seed.')
  fewest = min(len(row.values) for row in rows if row.summary)
  if fewest == 1:
    lines.append('Intervals: one seed has none; for two or three seeds they are the range.')
  else:
    lines.append(
      'Intervals: 95 % percentile bootstrap of the mean over seeds'
      + ('; for two or three seeds this is their range' if fewest <= 3 else '')
      + f'. With {fewest} seeds it contains the true mean at most '
      f'{100 * statistics.coverage(fewest):.3g} % of the time.'
    )
  compared = [row.comparison for row in rows if row.comparison and row.comparison.difference]
  if compared:
    most = max(c.difference.n for c in compared)
    lines.append(
      f'p: {"exact " * (most <= statistics.EXACT)}permutation test of the differences from '
      f'{join_names(list_bases(rows))}, paired by seed, corrected by Holm for '
      f'{format_count(len(compared), "comparison")}; a difference is shown where p is at most '
      f'{statistics.SIGNIFICANT}.'
    )
    least = min(c.reachable for c in compared)
    if least > statistics.SIGNIFICANT:
      lines.append(
        'So few seeds cannot show a difference here, whatever its size: the smallest corrected p they can '
        'reach is '
        f'{format_p(least).removeprefix("p = ")}; {statistics.seeds_needed(len(compared))} seeds could show '
        'one.'
      )
  if study.get('jobs', 0) > 1:
    lines.append(
      f'Up to {study["jobs"]} processes trained and measured at the same time on one machine: seconds and '
      'tokens/s include their mutual slowdown.'
    )
  if any(len(row.values) < len(study['seeds']) for row in rows if row.has_started):
    lines.append(
      'Means are over finished seeds; an arm whose worst seeds did not finish looks better than it is.'
    )
  return lines


def list_facts(results: dict, rows: Sequence[Row]) -> list[tuple[str, str]]:
  """(name, value) pairs for the head of the page."""
  study = results['study']
  facts = (
    ('metric', f'{study["metric"]}, {"lower" if study["lower_is_better"] else "higher"} is better'),
    ('compared with', join_names(list_bases(rows))),
    ('matched', study['match'] or 'nothing'),
    ('arms', f'{len(rows)}, of which {sum(row.summary is not None for row in rows)} finished'),
    ('seeds', ', '.join(map(str, study['seeds']))),
  )
  return [(name, value) for name, value in facts if value]


def list_bases(rows: Sequence[Row]) -> list[str]:
  """The arms that others are compared with, in the study's order."""
  in_order = sorted(rows, key=lambda row: row.index)
  return list(dict.fromkeys(row.compared_with for row in in_order if row.compared_with))


def list_origin(study: dict) -> list[tuple[str, str]]:
  """(name, value) pairs: how, where and when the results were made."""
  joined = {
    key: ', '.join(f'{name} {value}' for name, value in study[key].items())
    if isinstance(study.get(key), dict)
    else study.get(key)
    for key in ('versions', 'data')
  }
  seconds = study.get('seconds')
  origin = (
    ('command', study.get('command')),
    ('machine', study.get('machine')),
    ('date', study.get('date')),
    ('report', study.get('written')),
    ('time', seconds is not None and str(datetime.timedelta(seconds=round(seconds)))),
    ('seeds', ', '.join(map(str, study['seeds']))),
    ('data', joined['data']),
    ('versions', joined['versions']),
  )
  return [(name, str(value)) for name, value in origin if value]
