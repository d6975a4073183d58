"""The tables of a report: the ranking, the arms, means over x, and the other metrics; all cells are text."""

import io
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tfm.errors import importing_extra
from tfm.studies import statistics
from tfm.studies.report import figures, palette, plots, ranking, sentences
from tfm.studies.report.ranking import Row, format_number
from tfm.studies.statistics import format_p


with importing_extra('ablation'):
  from matplotlib.ticker import EngFormatter


# A metric with more values of x than this is plotted, not tabulated.
MAX_COLUMNS = 8


def format_ranking(results: dict) -> str:
  """The ranking for the terminal, with the answer above it, and explanations and notes below.

  Raises:
    ValueError: for invalid results; see `ranking.check_results`.
  """
  rows = ranking.rank_arms(results)
  study, has_rates = results['study'], has_selected_rates(results)
  table = Table(box=box.SIMPLE, pad_edge=False)
  for column, justify in (
    ('', 'right'),
    ('arm', 'left'),
    ('seeds', 'right'),
    (f'mean {study["metric"]}', 'right'),
    ('95 % interval', 'right'),
    ('minus base', 'right'),
    ('Holm p', 'right'),
    ('', 'left'),
    *([('learning rate', 'left')] if has_rates else []),
  ):
    table.add_column(
      column, justify=justify, overflow='fold', no_wrap=column not in ('arm', '', 'learning rate')
    )
  settings = {arm['name']: format_setting(arm) for arm in results['arms']}
  for cells in map(row_formatter(rows), rows):
    # Text is not parsed as rich's markup: an arm may be named '[b]'.
    table.add_row(
      *(
        Text(cells[key]) for key in ('rank', 'name', 'n', 'mean', 'interval', 'difference', 'holm', 'verdict')
      ),
      *([Text(format_rates(settings[cells['name']]))] if has_rates else []),
    )
  text = io.StringIO()
  Console(file=text, width=120, color_system=None).print(table)
  notes = [f'{row.name}: {note}' for row in rows for note in row.notes]
  lines = [
    sentences.answer_question(results, rows),
    text.getvalue().rstrip(),
    '',
    *sentences.explain_statistics(results, rows),
    *notes,
  ]
  return '\n'.join(lines).rstrip()


def row_formatter(rows: Sequence[Row]) -> Callable[[Row], dict]:
  """Returns a function row → the cells of the ranking."""
  places = ranking.decimals(rows)

  def format_interval(interval, sign=False):
    return '[{}, {}]'.format(*(format_number(x, places, sign) for x in interval)) if interval else '–'

  def format_row(row):
    s, c = row.summary, row.comparison
    d = c.difference if c else None
    return dict(
      rank=str(row.rank or '–'),
      name=row.name,
      hue=palette.hue(row.index, row.is_base),
      n=str(len(row.values)),
      mean=format_number(s.mean, places) if s else '–',
      interval=format_interval(s and s.interval),
      deviation=format_number(s.deviation, places) if s and s.deviation is not None else '–',
      difference=format_number(d.mean, places, sign=True) if d else '–',
      difference_interval=format_interval(d and d.interval, sign=True),
      p=format_p(c.p) if d else '–',
      holm=format_p(c.corrected) if d else '–',
      verdict=row.verdict,
      reason=c.reason if c and not c.reason.startswith('p ') else '',
      notes=row.notes,
    )

  return format_row


class MeansTable(NamedTuple):
  """The means of a metric at each x: the metric's name, the name of x, its values, and (arm, cells) for each
  row.
  """

  metric: str
  x_name: str
  columns: list[str]
  rows: list[tuple[str, list[str]]]


def tabulate_means(results: dict, rows: Sequence[Row]) -> Iterator[MeansTable]:
  """A table for each metric that has values at no more than MAX_COLUMNS values of x."""
  for name in ranking.metric_names(results, by_x=True):
    lines = plots.mean_lines(rows, ranking.values_by_x(results, name))
    xs = sorted({x for line in lines for x in line.x})
    if len(xs) <= MAX_COLUMNS:
      means = {line.row.name: dict(zip(line.x, line.mean)) for line in lines}
      yield MeansTable(
        *figures.split_axis(name),
        [f'{x:g}' for x in xs],
        [
          (row.name, [f'{means[row.name][x]:.4g}' if x in means.get(row.name, ()) else '–' for x in xs])
          for row in rows
        ],
      )


def tabulate_other_metrics(results: dict, rows: Sequence[Row]) -> dict | None:
  """The means of the scalar metrics other than the study's, without tests; None if there are none."""
  names = [name for name in ranking.metric_names(results, by_x=False) if name != results['study']['metric']]
  columns = []
  for metric in names:
    summaries = {
      arm: statistics.summarize([*values.values()])
      for arm, values in ranking.scalar_values(results, metric).items()
      if values
    }
    places = ranking.decimals_for([*summaries.values()]) if summaries else 0
    columns.append(
      {
        arm: (format_number(s.mean, places), ' to '.join(format_number(x, places) for x in s.interval or ()))
        for arm, s in summaries.items()
      }
    )
  cells = [(row.name, [column.get(row.name, ('–', '')) for column in columns]) for row in rows]
  return dict(names=names, rows=cells) if names else None


def format_setting(arm: dict) -> dict:
  """An arm's changes, the fields that matching changed, its costs and its selected learning rate."""
  tried = arm.get('rates') or {}
  results = {rate: 'diverged' for rate in tried.get('diverged', ())} | {
    rate: f'{value:.4g}' for rate, value in tried.get('reached', {}).items()
  }
  return dict(
    changes=[(path, repr(value)) for path, value in arm['changes'].items()],
    matched=[(path, repr(before), repr(after)) for path, (before, after) in arm['matched'].items()],
    costs=[
      (
        label,
        '–'
        if arm.get(key) is None
        else f'{arm[key]:,}'
        if key == 'parameters'
        else EngFormatter(places=2, sep=' ')(arm[key]),
      )
      for key, label in figures.COSTS.items()
    ],
    rate='–' if arm.get('rate') is None else f'{arm["rate"]:g}',
    rates=[f'{rate}: {results[rate]}' for rate in sorted(results, key=float)],
  )


def format_rates(setting: dict) -> str:
  """The learning rate of a `format_setting`, and the result at each candidate: '0.01 (0.001: 5.19, 0.01:
  2.99)'.
  """
  return setting['rate'] + f' ({", ".join(setting["rates"])})' * bool(setting['rates'])


def has_selected_rates(results: dict) -> bool:
  """Whether the study selected learning rates."""
  return any(arm.get('rates') for arm in results['arms'])


def tabulate_settings(results: dict, rows: Sequence[Row]) -> dict:
  """The arms in the order of the ranking: changes, matched fields, costs and learning rates."""
  match, costs = results['study']['match'], ['parameters', 'training FLOPs per token']
  has_rates = has_selected_rates(results)
  settings = {arm['name']: format_setting(arm) for arm in results['arms']}

  def format_cells(setting):
    cost_cells = dict(setting['costs'])
    matched = '<br>'.join(f'`{path}`: {a} → {b}' for path, a, b in setting['matched']) or 'nothing'
    return [
      '<br>'.join(f'`{path}={value}`' for path, value in setting['changes']) or 'nothing',
      *([matched] if match else []),
      *(cost_cells[name] for name in costs),
      *([format_rates(setting)] if has_rates else []),
    ]

  columns = [
    'changes',
    *([f'matched in {match}'] if match else []),
    *costs,
    *(['learning rate'] if has_rates else []),
  ]
  return dict(columns=columns, rows=[(row.name, format_cells(settings[row.name])) for row in rows])
