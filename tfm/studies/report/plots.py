"""The plots of a report at any width: the ranking with intervals, lines with bands, quality against cost."""

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tfm.errors import importing_extra
from tfm.studies.learning_rates import Optimum
from tfm.studies.report import palette
from tfm.studies.report.axes import (
  CHARACTER,
  FONT,
  LINE,
  NARROW,
  WIDE,
  XAxis,
  create_axes,
  draw_heading,
  format_x_axis,
  label_ends,
  label_of,
)
from tfm.studies.report.palette import LIGHT
from tfm.studies.report.ranking import Row, Series


with importing_extra('ablation'):
  import matplotlib
  from matplotlib.figure import Figure
  from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter


# The y axis of learning curves is clipped to the values after this fraction of the steps.
START = 0.2

Draw = Callable[[float], Figure]


class Plot(NamedTuple):
  """A plot: file name, heading, caption, and `draw(width in inches)`."""

  name: str
  title: str
  caption: str
  draw: Draw


def render_svg(draw: Draw, width: float, name: str) -> str:
  """The plot as SVG for a page: text stays text, colours are CSS variables, identifiers are unique per
  plot.
  """
  with (
    warnings.catch_warnings(),
    matplotlib.rc_context({'svg.fonttype': 'none', 'svg.hashsalt': f'{name} {width}'}),
  ):
    warnings.filterwarnings('ignore', 'Glyph .* missing')
    file = io.StringIO()
    draw(width).savefig(file, format='svg', metadata={'Date': None}, transparent=True)
  text = file.getvalue()
  text = text[text.index('<svg') :]
  for unused in (
    r'<metadata>.*?</metadata>\s*',
    r'<style.*?</style>\s*',
    r' id="(?:figure|axes|patch|text|line2d|xtick|'
    r'ytick|matplotlib\.axis|PathCollection|FillBetweenPolyCollection|LineCollection|legend)[^"]*"',
    r' xmlns(?::\w+)?="[^"]*"',
    r'<!--.*?-->\s*',
  ):
    text = re.sub(unused, '', text, flags=re.S)
  # Two decimals of a point are finer than any screen.
  text = re.sub(r' d="[^"]*"', lambda d: re.sub(r'(\.\d\d)\d+', r'\1', d[0]), text, flags=re.S)
  return palette.use_css_variables(text)


def save_png(draw: Draw, file) -> None:
  """Writes the plot as a PNG file."""
  with warnings.catch_warnings():
    warnings.filterwarnings('ignore', 'Glyph .* missing')
    draw(WIDE).savefig(file, dpi=144)


def draw_ranking(rows: Sequence[Row], label: str, width: float) -> Figure:
  """A line for each arm with its seeds, mean and interval; the mean and range of a single base cross all
  lines.
  """
  labels = [label_of(row, width) for row in rows]
  left = 0.15 + CHARACTER * max(map(len, labels))
  figure, axes = create_axes(width, 0.62 + 1.4 * LINE * len(rows), left=left, right=0.2, top=0.3, bottom=0.32)
  draw_heading(axes, label, left - 0.05)
  for row in rows:
    if row.is_base and row.summary and {other.compared_with for other in rows} == {row.name}:
      axes.axvspan(row.summary.minimum, row.summary.maximum, color=LIGHT['line'], alpha=0.3, linewidth=0)
      axes.axvline(row.summary.mean, color=LIGHT['base'], linewidth=0.8)
  for i, row in enumerate(rows):
    colour = LIGHT[palette.hue(row.index, row.is_base)]
    if row.summary:
      axes.plot([*row.values.values()], [i] * len(row.values), '|', color=colour, markersize=7, alpha=0.8)
      if row.summary.interval:
        axes.plot(row.summary.interval, [i, i], color=colour, linewidth=2, solid_capstyle='butt')
      axes.plot(
        row.summary.mean,
        i,
        palette.marker(row.index),
        color=colour,
        markersize=7,
        markeredgecolor=LIGHT['ground'],
        markeredgewidth=0.6,
      )
  axes.set_ylim(len(rows) - 0.4, -0.6)
  least, _ = axes.get_xlim()
  for i, row in enumerate(rows):
    if not row.summary:
      axes.text(least, i, f' {row.verdict}', color=LIGHT['bad'], fontsize=FONT - 1, va='center_baseline')
  axes.set_yticks(range(len(rows)), labels)
  for text in axes.get_yticklabels():
    text.set_parse_math(False)
  axes.tick_params(axis='y', length=0, labelcolor=LIGHT['ink'])
  axes.xaxis.set_major_locator(MaxNLocator(max(3, int((width - left) / 0.9))))
  axes.grid(axis='y', visible=False)
  return figure


class Line(NamedTuple):
  """A mean over x, with the band from the lowest to the highest seed; a line without a band is a single
  seed.
  """

  row: Series
  x: Sequence[float]
  mean: Sequence[float]
  low: Sequence[float] | None = None
  high: Sequence[float] | None = None


def mean_lines(
  rows: Sequence[Series],
  seeds: Mapping[str, Mapping[int, Mapping[float, float]]],
  diverged: set[tuple[str, int]] = frozenset(),
) -> list[Line]:
  """For each arm the mean and range over its seeds at each x that all have; diverged runs are lines of their
  own.
  """
  lines = []
  for row in rows:
    of_arm = seeds.get(row.name, {})
    of_all = [line for seed, line in of_arm.items() if (row.name, seed) not in diverged]
    if shared := sorted(set.intersection(*(set(line) for line in of_all)) if of_all else ()):
      table = np.array([[line[x] for x in shared] for line in of_all])
      lines.append(Line(row, shared, table.mean(0), table.min(0), table.max(0)))
    lines += [
      Line(row, [*line], [*line.values()]) for seed, line in of_arm.items() if (row.name, seed) in diverged
    ]
  return lines


def draw_lines(
  lines: Sequence[Line], label: str, x_axis: XAxis, width: float, limits: tuple[float, float] | None = None
) -> Figure:
  """Lines with bands, each labelled at its end.

  Args:
    limits: of the y axis; None: all values.
  """
  bands = [line for line in lines if line.low is not None]
  ends = [(line.row, line.x[-1], line.mean[-1]) for line in bands]
  # An arm without a finished seed is labelled at the end of a diverged one.
  ends += list(
    {
      line.row.name: (line.row, line.x[-1], line.mean[-1])
      for line in lines
      if line.row.name not in {w.row.name for w in bands}
    }.values()
  )
  right = 0.4 + CHARACTER * max(len(label_of(row, width)) for row, _, _ in ends)
  height = max(0.62 * width if width > NARROW else 2.7, 0.9 + LINE * len(ends))
  figure, axes = create_axes(width, height, left=0.48, right=right, top=0.32, bottom=0.5)
  draw_heading(axes, label, 0.4)
  format_x_axis(axes, x_axis)
  # Better arms are drawn over worse ones.
  for line in reversed(lines):
    colour, dash = LIGHT[palette.hue(line.row.index, line.row.is_base)], palette.dash(line.row.index)
    has_markers = len(line.x) <= 16
    if line.low is None:
      axes.plot(line.x, line.mean, color=colour, linewidth=0.9, linestyle=(0, (1, 1.5)))
      axes.plot(line.x[-1], line.mean[-1], 'x', color=colour, markersize=5)
      continue
    axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(
      line.x,
      line.mean,
      color=colour,
      linewidth=1.6,
      linestyle=dash,
      marker=palette.marker(line.row.index) if has_markers else None,
      markersize=4,
      markeredgecolor=LIGHT['ground'],
      markeredgewidth=0.5,
    )
  if limits and limits[0] < limits[1]:
    margin = 0.04 * (limits[1] - limits[0])
    axes.set_ylim(limits[0] - margin, limits[1] + margin)
  label_ends(figure, axes, ends, width)
  return figure


def draw_rates(lines: Sequence[Line], optima: Mapping[str, Optimum], label: str, width: float) -> Figure:
  """Lines of a metric against the learning rate, with a ring at the optimum of each arm.

  The y axis is clipped to the optima and what is next to them: far from its optimum an arm is far worse.
  """
  near = []
  for line in lines:
    i = line.x.index(optima[line.row.name].best)
    near += [*line.mean[max(0, i - 1) : i + 2], optima[line.row.name].value]
  figure = draw_lines(lines, label, XAxis('learning rate', 10), width, (min(near), max(near)))
  for line in lines:
    figure.axes[0].plot(
      optima[line.row.name].rate,
      optima[line.row.name].value,
      'o',
      markersize=9,
      markerfacecolor='none',
      markeredgecolor=LIGHT[palette.hue(line.row.index, line.row.is_base)],
    )
  return figure


def draw_scaling(lines: Sequence[Line], curves: Mapping[str, Callable], label: str, width: float) -> Figure:
  """Lines of a loss against compute, with the fitted curve of each series dashed."""
  figure = draw_lines(lines, label, XAxis('training FLOPs', 10), width)
  for line in lines:
    if line.row.name in curves:
      x = np.geomspace(line.x[0], line.x[-1], 50)
      colour = LIGHT[palette.hue(line.row.index, line.row.is_base)]
      figure.axes[0].plot(x, curves[line.row.name](x), color=colour, linewidth=0.8, linestyle=(0, (4, 2)))
  return figure


def start_limits(lines: Sequence[Line]) -> tuple[float, float] | None:
  """Limits of y to the values of the bands after the first `START` of their x; None without bands."""
  bands = [line for line in lines if line.low is not None]
  if not bands:
    return None
  return min(min(line.low) for line in bands), upper_limit(bands)


def upper_limit(lines: Sequence[Line]) -> float:
  """The highest value of the bands after the first `START` of their x."""
  return max(
    high
    for line in lines
    for x, high in zip(line.x, line.high)
    if x >= line.x[0] + START * (line.x[-1] - line.x[0])
  )


def draw_scatter(
  rows: Sequence[Row], cost: Mapping[str, float], label: str, x_label: str, width: float
) -> Figure:
  """Each arm's mean and interval at its cost."""
  shown = [row for row in rows if row.summary and row.name in cost]
  right = 0.4 + CHARACTER * max(len(label_of(row, width)) for row in shown)
  height = max(0.62 * width if width > NARROW else 2.7, 0.9 + LINE * len(shown))
  figure, axes = create_axes(width, height, left=0.48, right=right, top=0.32, bottom=0.5)
  draw_heading(axes, label, 0.4)
  axes.set_xlabel(x_label, color=LIGHT['faint'], fontsize=FONT)
  costs = [cost[row.name] for row in shown]
  if min(costs) > 0 and max(costs) > 4 * min(costs):
    axes.set_xscale('log')
    axes.xaxis.set_minor_formatter(NullFormatter())
    if max(costs) < 30 * min(costs):
      axes.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
  else:
    axes.xaxis.set_major_locator(MaxNLocator(4))
  axes.xaxis.set_major_formatter(EngFormatter(sep=''))
  for row in shown:
    colour = LIGHT[palette.hue(row.index, row.is_base)]
    if row.summary.interval:
      axes.plot([cost[row.name]] * 2, row.summary.interval, color=colour, linewidth=1.4)
    axes.plot(
      cost[row.name],
      row.summary.mean,
      palette.marker(row.index),
      color=colour,
      markersize=7,
      markeredgecolor=LIGHT['ground'],
      markeredgewidth=0.6,
    )
  axes.margins(x=0.08, y=0.1)
  label_ends(figure, axes, [(row, cost[row.name], row.summary.mean) for row in shown], width)
  return figure
