"""The sentences of a report: the answer, the explanation of the statistics, the facts and the origin."""

import datetime
import itertools
from collections.abc import Sequence

from tfm.studies.learning_rates import rank_correlation
from tfm.studies.report.ranking import Ranking, Row
from tfm.studies.report.scaling import describe_curves, explain_curves
from tfm.studies.report.suites import describe_suite, explain_suite
from tfm.studies.report.wording import format_number, join_names
from tfm.studies.statistics import power
from tfm.studies.statistics.compare import Comparison
from tfm.studies.statistics.summary import ALPHA, LEVEL, format_count, format_p
from tfm.studies.study import split_last


# The verdicts on arms whose runs finished, or diverged.
VERDICTS = 'better', 'worse', 'same', 'undecided', 'not compared'
# Seeds → percent of studies of six equal arms, one of them seven times as noisy, that show a difference
# (simulated: tests/studies/statistics/test_power.py).
NOISY_LEVELS = {2: 18, 3: 14}
PERCENT = f'{LEVEL:.0%}'.replace('%', ' %')


def answer_question(results: dict, ranking: Ranking) -> str:
  """What the results show, in one sentence: what is best, by how much, and how sure."""
  rows = ranking.rows
  parts = describe_curves(results) + describe_suite(results)
  if parts:
    parts = _describe_series(results, ranking) + parts
  else:
    parts += [_describe_leader(results, ranking)] if ranking.criterion.solved_at is None else []
    for base in ranking.bases:
      parts += _describe_comparisons(base, results, ranking)
  if failed := [row.name for row in rows if row.verdict == 'did not finish']:
    parts.append(f'{join_names(failed)} did not finish')
  if untrained := [row.name for row in rows if row.verdict == 'not trained yet']:
    parts.append(f'{join_names(untrained)} {_be(untrained)} not trained yet')
  sentence = '; '.join(parts)
  # A word at the start is capitalized, the name of an arm is not changed.
  if not any(sentence.startswith(row.name) for row in rows):
    sentence = sentence[0].upper() + sentence[1:]
  return sentence + '.'


def _describe_series(results: dict, ranking: Ranking) -> list[str]:
  """A part of the answer for each series of a study with scales or tasks: the verdicts on its arms."""
  kind, of_series = 'scales' if results['study'].get('scales') else 'tasks', {}
  for row in ranking.rows:
    if row.judged:
      names = (split_last(name)[0] for name in (row.name, row.compared_with))
      of_series.setdefault(tuple(names), []).append(row)
  parts = []
  for (series, base), judged in of_series.items():
    found = {word: [row for row in judged if row.verdict == word] for word in VERDICTS}
    every = 'both' if len(judged) == 2 else f'all {len(judged)}'
    counts = [
      f'{word} at {every if len(rows) == len(judged) else f"{len(rows)} of {len(judged)}"} {kind}'
      + _format_range(rows, ranking) * (word in ('better', 'worse'))
      for word, rows in found.items()
      if rows
    ]
    parts.append(f'beside {base} {series} is {join_names(counts)}')
  return parts


def _describe_leader(results: dict, ranking: Ranking) -> str:
  """The arm with the best mean, and whether it is shown to be the best."""
  study, rows, best = results['study'], ranking.rows, ranking.rows[0]
  extreme, side = ('lowest', 'below') if ranking.criterion.lower_is_better else ('highest', 'above')
  mean, seeds = format_number(best.summary.mean, ranking.places), format_count(len(best.values), 'seed')
  # Arms of which a run diverged are ranked behind, and may have the better mean.
  among = ''
  if not _has_diverged(best) and any(map(_has_diverged, rows)) and ranking.criterion.solved_at is None:
    among = ' of the arms without a run that diverged'
  if ranking.leaders == (best.name,):
    gap = format_number(abs(ranking.lead.difference), ranking.places)
    return (
      f'{best.name} has the {extreme} {study["metric"]}{among}, {mean}: {gap} {side} the next, '
      f'{rows[1].name} ({format_certainty(ranking.lead, ranking.places)}; {seeds})'
    )
  text = f'{best.name} has the {extreme} mean {study["metric"]}{among}, {mean} ({seeds})'
  if others := ranking.leaders[1:]:
    text += f', but {join_names(others)} {_be(others)} not shown to be worse than it'
  return text


def _describe_comparisons(base: str, results: dict, ranking: Ranking) -> list[str]:
  """Parts of the answer: the verdicts on the arms that are compared with one base, the base's outcome first
  where outcomes are yes or no.
  """
  compared = [row for row in ranking.rows if row.compared_with == base and row.judged]
  by_word = {word: [row for row in compared if row.verdict == word] for word in VERDICTS}
  parts = []
  if ranking.criterion.solved_at is not None:
    share = ranking.findings.outcomes.get(base)
    parts += [f'{base} solves {share.k} of {format_count(share.n, "seed")}'] if share else []
  for word in ('better', 'worse'):
    if rows := by_word[word]:
      is_all = 2 < len(rows) == len(ranking.rows) - 1
      names = f'all {len(rows)} others' if is_all else join_names([_name(row, ranking) for row in rows])
      than = '' if is_all and ranking.rows[0].name == base else f' than {base}'
      parts.append(f'{names} {_be(rows)} {word}{than}{_format_range(rows, ranking)}')
  if rows := by_word['same']:
    names = join_names([row.name for row in rows])
    parts.append(f'{names} {_be(rows)} the same as {base} within {ranking.criterion.margin:g}')
  if rows := by_word['undecided']:
    needed = {}
    for row in rows:
      needed.setdefault(format_needed(row), []).append(_name(row, ranking))
    names = [f'{join_names(of_text)} ({text})' for text, of_text in needed.items()]
    parts.append(f'undecided against {base}: {", ".join(names)}')
  if rows := by_word['not compared']:
    parts.append(f'{join_names([row.name for row in rows])} could not be compared with {base}')
  return parts


def _has_diverged(row: Row) -> bool:
  """Whether some of its runs diverged, where outcomes are not yes or no."""
  return row.outcome is not None and row.outcome.k < row.outcome.n


def _be(items: Sequence) -> str:
  return 'is' if len(items) == 1 else 'are'


def _name(row: Row, ranking: Ranking) -> str:
  """An arm's name, with its outcome where outcomes are yes or no."""
  return (
    row.name if ranking.criterion.solved_at is None else f'{row.name} ({row.outcome.k} of {row.outcome.n})'
  )


def _format_range(rows: Sequence[Row], ranking: Ranking) -> str:
  """' by 0.01 to 0.13': the sizes of their differences."""
  sizes = [abs(row.comparison.difference) for row in rows if row.comparison]
  # What diverged is worse than any difference of what finished.
  if ranking.criterion.solved_at is not None or not sizes or any(map(_has_diverged, rows)):
    return ''
  texts = dict.fromkeys(format_number(size, ranking.places) for size in (min(sizes), max(sizes)))
  return f' by {" to ".join(texts)}'


def format_certainty(comparison: Comparison, places: int) -> str:
  """'95 % interval 0.01 to 0.03, p = 0.012': how sure a difference is, without its sign."""
  sign = 1 if comparison.difference > 0 else -1
  low, high = (format_number(x, places) for x in sorted(sign * x for x in comparison.interval))
  return f'{PERCENT} interval {low} to {high}, {format_p(comparison.p)}'


def format_needed(row: Row) -> str:
  """What would decide an undecided comparison."""
  if row.judged.p is None:
    return row.judged.reason
  if row.judged.seeds is None:
    return f'more than {power.MAX_SEEDS} seeds would be needed'
  return f'{row.judged.seeds} seeds would decide'


def format_reason(row: Row) -> str:
  """What the table adds to a verdict."""
  reasons = [row.judged.reason]
  if row.verdict == 'undecided':
    reasons = [format_needed(row)] + reasons * (row.outcome.k < row.outcome.n)
  return '; '.join(dict.fromkeys(filter(None, reasons)))


def explain_statistics(results: dict, ranking: Ranking) -> list[str]:
  """A sentence each on the noise floor, the intervals, the tests and their power, and what is left out."""
  study, analysis, places = results['study'], ranking.findings.analysis, ranking.places
  floor, margin = analysis.floor, ranking.criterion.margin
  lines = []
  if floor is None:
    reason = 'no two arms vary alike' if analysis.noisy else 'no arm finished with two seeds'
    lines.append(f'Noise floor: unknown, because {reason}.')
  else:
    source = 'its arm and its seed explain' if analysis.blocked else 'its arm explains'
    lines.append(
      f'Noise floor: beyond what {source}, the {study["metric"]} of a run varies by '
      f'{format_number(floor.deviation, places)} (standard deviation, pooled over '
      f'{format_count(analysis.arms, "arm")}, {format_count(floor.df, "degree")} of freedom).'
    )
    lines.append(
      f"Intervals: {PERCENT}. Those of means are Student's, with the deviation within arms, "
      f'{format_number(analysis.within.deviation, places)}; those of differences hold all together.'
    )
  lines += [
    *_explain_tests(ranking),
    *_explain_rungs(results),
    *explain_curves(results),
    *explain_suite(results),
  ]
  if analysis.noisy:
    lines.append(
      f'{join_names(analysis.noisy)} {"varies" if len(analysis.noisy) == 1 else "vary"} over seeds unlike '
      "the other arms (Brown and Forsythe's test, or over 3 times as much), and "
      f"{_be(analysis.noisy)} compared by Welch's test with Holm's correction, from 5 seeds on."
    )
  if margin is not None:
    lines.append(
      f'Same: the interval of the difference lies within ± {margin:g} (two one-sided tests); such a '
      'difference does not matter here, even where it is shown.'
    )
  if study.get('jobs', 0) > 1:
    lines.append(
      f'Up to {study["jobs"]} processes trained and measured at the same time on one machine: seconds and '
      'tokens/s include their mutual slowdown.'
    )
  if any(arm['diverged'] for arm in results['arms']):
    lines.append(
      'A run that diverged has the worst outcome: its arm ranks below those that finished, is worse if more '
      "of its runs diverged than of the base's (Boschloo's test with Holm's correction) or if the finished "
      'ones are worse, too, each test at half of the error probability, and is never the same. Means are over'
      ' finished seeds.'
    )
  return lines


def _explain_rungs(results: dict) -> list[str]:
  """How well the rungs, after which learning rates were dropped, rank the rates that remained."""
  correlations = {}
  for arm in results['arms']:
    tried = arm.get('rates') or {}
    outcomes = [*tried.get('rungs', {}).items(), ('full', tried)]
    for (steps, before), (_, after) in itertools.pairwise(outcomes):
      correlation = rank_correlation(before.get('reached', {}), after.get('reached', {}))
      if correlation is not None:
        correlations.setdefault(steps, []).append(correlation)
  return [
    f'Learning rates were dropped after {steps} steps, which rank rates as what follows does with a '
    f"correlation of {format_number(sum(found) / len(found), 2)} (Spearman's, of the rates that remained, "
    f'mean over {format_count(len(found), "arm")}).'
    for steps, found in correlations.items()
  ]


def _explain_tests(ranking: Ranking) -> list[str]:
  """The tests of the metric, and what they can show."""
  analysis, bases = ranking.findings.analysis, join_names(ranking.bases)
  if ranking.criterion.solved_at is not None:
    count = len(ranking.findings.verdicts)
    return [
      f'A run is solved from {ranking.criterion.solved_at:g} on, and one that diverged is not; intervals of '
      f"shares are exact (Clopper and Pearson). p: Boschloo's exact test against {bases}, with Holm's "
      f'correction for {format_count(count, "comparison")}; a difference is shown where p is at most {ALPHA}.'
    ]
  if not analysis.count or analysis.floor is None:
    return []
  blocks = ', with seeds as blocks' if analysis.blocked else ''
  lines = [
    f"p: Dunnett's test of {format_count(analysis.count, 'difference')} from {bases}{blocks}, corrected for "
    f'all of them; a difference is shown where p is at most {ALPHA}.'
  ]
  seeds = min(len(row.values) for row in ranking.rows if row.values)
  size = power.smallest_difference(analysis.floor, seeds, analysis.tests)
  lines.append(
    f'Power: with {format_count(seeds, "seed")} a difference of {format_number(size, ranking.places)} '
    f'({size / analysis.floor.deviation:.1f} times the noise floor) is shown with probability {power.POWER}.'
    if analysis.floor.deviation
    else 'Power: unknown, because runs do not vary.'
  )
  if seeds in NOISY_LEVELS and analysis.arms > 2:
    lines[-1] += (
      f' {seeds} seeds hardly show whether one arm varies more than the others: beside one that varies seven '
      f'times as much the test errs in about {NOISY_LEVELS[seeds]} % of studies.'
    )
  return lines


def list_facts(results: dict, ranking: Ranking) -> list[tuple[str, str]]:
  """(name, value) pairs for the head of the page."""
  study, rows = results['study'], ranking.rows
  facts = (
    ('metric', f'{study["metric"]}, {"lower" if study["lower_is_better"] else "higher"} is better'),
    ('compared with', join_names(ranking.bases)),
    ('matched', study['match'] or 'nothing'),
    ('arms', f'{len(rows)}, of which {sum(row.summary is not None for row in rows)} finished'),
    ('seeds', ', '.join(map(str, study['seeds']))),
  )
  return [(name, value) for name, value in facts if value]


def list_origin(study: dict) -> list[tuple[str, str]]:
  """(name, value) pairs: how, where and when the results were made."""
  joined = {
    key: ', '.join(f'{name} {value}' for name, value in study[key].items())
    if isinstance(study.get(key), dict)
    else study.get(key)
    for key in ('versions', 'data')
  }
  seconds, jobs = study.get('seconds'), study.get('jobs', 0)
  time = seconds is not None and str(datetime.timedelta(seconds=round(seconds)))
  origin = (
    ('command', study.get('command')),
    ('machine', study.get('machine')),
    ('date', study.get('date')),
    ('report', study.get('written')),
    ('time', f'{time}, of {jobs} processes together' if time and jobs > 1 else time),
    ('seeds', ', '.join(map(str, study['seeds']))),
    ('data', joined['data']),
    ('versions', joined['versions']),
  )
  return [(name, str(value)) for name, value in origin if value]
