"""The tables of a report: the ranking, the arms, means over x, and the other metrics; all cells are text."""

import io
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tfm.errors import importing_extra
from tfm.studies.learning_rates import find_interval, find_neighbours, find_optimum, list_rates_tried
from tfm.studies.report import figures, palette, sentences
from tfm.studies.report.caveats import list_caveats
from tfm.studies.report.metric_tests import compare_by_x, compare_scalars
from tfm.studies.report.ranking import Ranking, Row, rank_arms
from tfm.studies.report.scaling import order_scales, tabulate_curves, tabulate_read
from tfm.studies.report.suites import tabulate_suite
from tfm.studies.report.targets import list_targets
from tfm.studies.report.wording import decimals_for, format_number
from tfm.studies.statistics.shares import Share
from tfm.studies.statistics.summary import Spread, format_p, summarize


with importing_extra('ablation'):
  from matplotlib.ticker import EngFormatter


# The columns of the ranking in the terminal and in Markdown: the cell of `row_formatter`, heading, alignment.
COLUMNS = (
  ('rank', '', 'right'),
  ('name', 'arm', 'left'),
  ('n', 'seeds', 'right'),
  ('mean', 'mean {metric}', 'right'),
  ('difference', 'minus base', 'right'),
  ('difference_interval', '95 % interval', 'right'),
  ('p', 'p', 'right'),
  ('verdict', 'verdict', 'left'),
)


def format_ranking(results: dict) -> str:
  """The ranking for the terminal, with the answer above it, and explanations, warnings and notes below.

  Raises:
    ValueError: for invalid results; see `values.check_results`.
  """
  ranking = rank_arms(results)
  table = Table(box=box.SIMPLE, pad_edge=False)
  columns, rows = tabulate_ranking(results, ranking)
  for heading, justify in columns:
    table.add_column(
      heading, justify=justify, overflow='fold', no_wrap=heading not in ('arm', 'verdict', 'learning rate')
    )
  for cells in rows:
    # Text is not parsed as rich's markup: an arm may be named '[b]'.
    table.add_row(*map(Text, cells))
  text = io.StringIO()
  Console(file=text, width=120, color_system=None).print(table)
  lines = [
    sentences.answer_question(results, ranking),
    text.getvalue().rstrip(),
    '',
    *sentences.explain_statistics(results, ranking),
    *(f'Warning: {caveat}' for caveat in list_caveats(results, ranking)),
    *(f'{name}: {note}' for name, note in list_notes(ranking)),
  ]
  return '\n'.join(lines).rstrip()


def tabulate_ranking(results: dict, ranking: Ranking) -> tuple[list[tuple[str, str]], list[list[str]]]:
  """(heading, alignment) of each column of the ranking, and the cells of each row."""
  columns = [(key, heading.format(metric=results['study']['metric']), side) for key, heading, side in COLUMNS]
  if ranking.criterion.solved_at is not None:
    columns.insert(3, ('outcome', 'solved', 'right'))
  if any(row.text_interval for row in ranking.rows):
    after = [key for key, *_ in columns].index('difference_interval') + 1
    columns.insert(after, ('text_interval', 'for other texts', 'right'))
  format_row, settings = row_formatter(ranking), settings_formatter(results, ranking)
  rows = []
  for row in ranking.rows:
    cells = format_row(row)
    if row.verdict == 'undecided':
      cells['verdict'] += f': {sentences.format_needed(row)}'
    rows.append([cells[key] for key, *_ in columns])
  if has_selected_rates(results):
    columns.append(('', 'learning rate', 'left'))
    for row, cells in zip(ranking.rows, rows):
      cells.append(settings(row.name)['rate'])
  return [(heading, side) for _, heading, side in columns], rows


def list_notes(ranking: Ranking) -> list[tuple[str, str]]:
  """(arm, note) on what did not finish, and on verdicts that runs decide which diverged."""
  notes = []
  for row in ranking.rows:
    reasons = [f'{row.verdict}: {row.judged.reason}'] if row.judged and is_partial(row) else []
    notes += [(row.name, note) for note in (*row.notes, *reasons)]
  return notes


def row_formatter(ranking: Ranking) -> Callable[[Row], dict]:
  """Returns a function row → the cells of the ranking."""
  places = ranking.places

  def format_interval(interval, sign=False):
    return '[{}, {}]'.format(*(format_number(x, places, sign) for x in interval)) if interval else '–'

  def format_row(row):
    s, c = row.summary, row.comparison
    p = row.judged.p if row.judged else None
    reason = ''
    if row.judged and row.verdict == row.judged.word:
      reason = sentences.format_reason(row)
    return dict(
      rank=str(row.rank or '–'),
      name=row.name,
      hue=palette.hue(row.index, row.is_base),
      n=str(len(row.values)) + (f' of {row.outcome.n}' if is_partial(row) else ''),
      outcome=format_share(row.outcome) if row.outcome else '–',
      mean=format_number(s.mean, places) if s else '–',
      interval=format_interval(s and s.interval),
      deviation=format_number(s.deviation, places) if s and s.deviation is not None else '–',
      difference=format_number(c.difference, places, sign=True) if c else '–',
      difference_interval=format_interval(c and c.interval, sign=True),
      text_interval=format_interval(row.text_interval, sign=True),
      p='–' if p is None else format_p(p).removeprefix('p = ').removeprefix('p '),
      verdict=f'same within {ranking.criterion.margin:g}' if row.verdict == 'same' else row.verdict,
      word=row.verdict,
      reason=reason,
      notes=row.notes,
    )

  return format_row


def is_partial(row: Row) -> bool:
  """Whether runs of an arm diverged."""
  return row.outcome is not None and len(row.values) < row.outcome.n


def format_share(share: Share) -> str:
  """'4 of 8 [16 %, 84 %]'."""
  low, high = (f'{100 * x:.0f} %' for x in share.interval)
  return f'{share.k} of {share.n} [{low}, {high}]'


class XTable(NamedTuple):
  """A metric of each arm at each x: the names of the metric and of x, what the cells are, the values of x,
  and (arm, cells) for each row.
  """

  metric: str
  x_name: str
  cells: str
  columns: list[str]
  rows: list[tuple[str, list[str]]]


def tabulate_means(results: dict, ranking: Ranking) -> Iterator[XTable]:
  """A table for each metric that has values at few x, with the marks of its tests."""
  for name, tests in compare_by_x(results, ranking).items():
    tested = {x for x, _ in tests.findings}

    def format_cell(x, arm):
      values = tests.values[x].get(arm)
      return f'{sum(values.values()) / len(values):.4g}{tests.mark(x, arm)}' if values else '–'

    yield XTable(
      *figures.split_axis(name),
      'mean over seeds' + ('' if tests.findings else ' (untested)'),
      [f'{x:g}' + ' (untested)' * (bool(tests.findings) and x not in tested) for x in tests.values],
      [(row.name, [format_cell(x, row.name) for x in tests.values]) for row in ranking.rows],
    )


def tabulate_scaling(results: dict) -> XTable | None:
  """The fitted curve of each series; None without scales."""
  rows = tabulate_curves(results)
  base = rows and rows[0][0]
  columns = ['exponent', 'smallest', 'largest', 'relation']
  return XTable('compute multiplier', 'training FLOPs', f'against {base}', columns, rows) if rows else None


def tabulate_multipliers(results: dict) -> XTable | None:
  """The multipliers of each series at each scale, without a fit; None without scales."""
  if not (rows := tabulate_read(results)):
    return None
  return XTable(
    'compute multiplier', 'scale', 'read between the points of the base', order_scales(results), rows
  )


def tabulate_targets(results: dict, ranking: Ranking) -> XTable | None:
  """What each arm costs until its loss is that of its base in the end; None for other metrics."""
  rows = list_targets(results, ranking)
  columns = ['target', 'steps', 'training FLOPs', 'time']
  return (
    XTable('steps, compute and time', 'target', 'of mean curves (untested)', columns, rows) if rows else None
  )


def tabulate_aggregates(results: dict) -> XTable | None:
  """Each series over all tasks; None without tasks."""
  rows = tabulate_suite(results)
  columns = ['interquartile mean', 'probability of improvement']
  metric = results['study']['metric']
  return XTable(metric, 'aggregate over tasks', 'intervals of 95 %', columns, rows) if rows else None


def tabulate_published(results: dict, ranking: Ranking) -> XTable | None:
  """The mean of each arm beside the number that a paper states of it; None without any."""
  published, metric = results['study'].get('published', {}), results['study']['metric']
  rows = [
    (
      row.name,
      [
        format_number(row.summary.mean, ranking.places) if row.summary else '–',
        *(
          (f'{published[row.name][0]:g}', published[row.name][1])
          if row.name in published
          else ('none published', '')
        ),
      ],
    )
    for row in ranking.rows
  ]
  columns = [f'mean {metric}', 'published', 'source']
  return XTable(metric, 'arm', 'beside published numbers (untested)', columns, rows) if published else None


def tabulate_rates(results: dict, ranking: Ranking) -> XTable | None:
  """What each arm reached at each learning rate that was tried; None if none was."""
  outcomes = {arm['name']: _list_outcomes(arm, ranking.places) for arm in results['arms']}
  rates = sorted({rate for of_arm in outcomes.values() for rate in of_arm}, key=float)
  rows = [(row.name, [outcomes[row.name].get(rate, '–') for rate in rates]) for row in ranking.rows]
  metric, runs = results['study']['metric'], results['study'].get('runs_per_rate', 1)
  cells = 'one run each (untested)' if runs == 1 else f'means of {runs} runs each (untested)'
  return XTable(metric, 'learning rate', cells, rates, rows) if rates else None


def _list_outcomes(arm: dict, places: int) -> dict[str, str]:
  """Learning rate → '2.990', '0.993 in 450 steps', 'diverged', or 'dropped after 50 steps'."""
  tried = arm.get('rates') or {}
  rungs = tried.get('rungs', {})
  texts = {
    rate: f'dropped after {steps} steps'
    for steps, outcome in rungs.items()
    for rate in outcome.get('reached', ())
  }
  texts |= {rate: 'diverged' for outcome in (*rungs.values(), tried) for rate in outcome.get('diverged', ())}
  steps = {rate: f' in {taken:,.0f} steps' for rate, taken in tried.get('steps', {}).items()}
  return texts | {
    rate: format_number(value, places) + steps.get(rate, '')
    for rate, value in tried.get('reached', {}).items()
  }


def tabulate_other_metrics(results: dict, ranking: Ranking) -> dict | None:
  """The means of the scalar metrics other than the study's, with their intervals and the marks of their
  tests; None if there are none.
  """
  columns, names = [], []
  for metric, tests in compare_scalars(results, ranking).items():
    names.append(metric if tests.findings else f'{metric} (untested)')
    summaries = {
      arm: summarize([*values.values()], tests.spread(None, arm))
      for arm, values in tests.values[None].items()
      if values
    }
    places = decimals_for([*summaries.values()]) if summaries else 0
    columns.append(
      {
        arm: (
          format_number(s.mean, places) + tests.mark(None, arm),
          ' to '.join(format_number(x, places) for x in s.interval or ()) if tests.findings else '',
        )
        for arm, s in summaries.items()
      }
    )
  cells = [(row.name, [column.get(row.name, ('–', '')) for column in columns]) for row in ranking.rows]
  return dict(names=names, rows=cells) if names else None


def settings_formatter(results: dict, ranking: Ranking) -> Callable[[str], dict]:
  """Returns a function arm → its changes, the fields that matching changed, its costs, and its learning
  rate.
  """
  arms = {arm['name']: arm for arm in results['arms']}
  floor, is_lower = ranking.findings.analysis.floor, ranking.criterion.lower_is_better
  runs = results['study'].get('runs_per_rate', 1)
  noise = floor and Spread(floor.deviation / math.sqrt(runs), floor.df)  # of a mean of the runs at a rate

  def format_settings(name):
    arm = arms[name]
    return dict(
      changes=[(path, repr(value)) for path, value in arm['changes'].items()],
      matched=[(path, repr(before), repr(after)) for path, (before, after) in arm['matched'].items()],
      costs=[(label, _format_cost(key, arm.get(key))) for key, label in figures.COSTS.items()],
      rate=_format_rate(arm, noise, is_lower),
    )

  return format_settings


def _format_cost(key: str, cost: float | None) -> str:
  if cost is None:
    return '–'
  return f'{cost:,}' if key == 'parameters' else EngFormatter(places=2, sep=' ')(cost)


def _format_rate(arm: dict, noise: Spread | None, lower_is_better: bool) -> str:
  """'0.0042 [0.0031, 0.0058]': the selected rate, and the interval of the best, if the metric chose it."""
  if arm.get('rate') is None:
    return '–'
  outcome = arm.get('rates') or {}
  reached = {float(rate): value for rate, value in outcome.get('reached', {}).items()}
  tried = [*map(float, list_rates_tried(arm))]
  interval = ''
  if noise and noise.deviation and reached and not outcome.get('steps'):
    best = find_optimum(reached, tried, lower_is_better).best
    if limits := find_interval(reached, tried, best, noise):
      interval = _format_limits(*limits, find_neighbours(reached, tried, best))
  return f'{arm["rate"]:g}{interval}'


def _format_limits(low: float, high: float, points: list[float]) -> str:
  """' [0.0031, > 0.008]': how far a limit lies beyond the parabola's points the parabola cannot say."""
  below = f'< {points[0]:g}' if low < points[0] else f'{low:.2g}'
  above = f'> {points[-1]:g}' if high > points[-1] else f'{high:.2g}'
  return f' [{below}, {above}]'


def has_selected_rates(results: dict) -> bool:
  """Whether the study selected learning rates."""
  return any(arm.get('rates') for arm in results['arms'])


def tabulate_settings(results: dict, ranking: Ranking) -> dict:
  """The arms in the order of the ranking: changes, matched fields, costs and learning rates."""
  match, costs = results['study']['match'], ['parameters', 'training FLOPs per token']
  has_rates = has_selected_rates(results)
  format_settings = settings_formatter(results, ranking)

  def format_cells(settings):
    cost_cells = dict(settings['costs'])
    matched = '<br>'.join(f'`{path}`: {a} → {b}' for path, a, b in settings['matched']) or 'nothing'
    return [
      '<br>'.join(f'`{path}={value}`' for path, value in settings['changes']) or 'nothing',
      *([matched] if match else []),
      *(cost_cells[name] for name in costs),
      *([settings['rate']] if has_rates else []),
    ]

  columns = [
    'changes',
    *([f'matched in {match}'] if match else []),
    *costs,
    *(['learning rate'] if has_rates else []),
  ]
  return dict(
    columns=columns, rows=[(row.name, format_cells(format_settings(row.name))) for row in ranking.rows]
  )
