"""The plots of a report at any width: the ranking with intervals, lines with bands, quality against cost."""

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tfm.errors import importing_extra
from tfm.studies.report import palette
from tfm.studies.report.palette import LIGHT
from tfm.studies.report.ranking import Row


with importing_extra('ablation'):
  import matplotlib
  from matplotlib.axes import Axes
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure
  from matplotlib.lines import Line2D
  from matplotlib.ticker import (
    EngFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
    StrMethodFormatter,
  )
  from scipy.optimize import isotonic_regression


# Inches: the width of a plot on a laptop and on a phone, of a character of a label, and the height of a line.
WIDE, NARROW = 6.4, 3.55
CHARACTER, LINE = 0.078, 0.19
FONT = 9
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

  row: Row
  x: Sequence[float]
  mean: Sequence[float]
  low: Sequence[float] | None = None
  high: Sequence[float] | None = None


def mean_lines(
  rows: Sequence[Row],
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


class XAxis(NamedTuple):
  """The x axis of lines.

  Attributes:
    label: of the axis; is_log: whether it is logarithmic, with base 2.
    training_x: the x of training, which a vertical line marks; None: no line.
  """

  label: str
  is_log: bool = False
  training_x: float | None = None


def draw_lines(
  lines: Sequence[Line], label: str, x_axis: XAxis, width: float, clip_start: bool = False
) -> Figure:
  """Lines with bands, each labelled at its end.

  Args:
    clip_start: clips the y axis to the values after the first `START` of x.
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
  if clip_start and bands:
    top, bottom = upper_limit(bands), min(min(line.low) for line in bands)
    if top > bottom:
      axes.set_ylim(bottom - 0.04 * (top - bottom), top + 0.02 * (top - bottom))
  label_ends(figure, axes, ends, width)
  return figure


def format_x_axis(axes: Axes, x_axis: XAxis) -> None:
  """Sets label, scale and ticks, and marks the x of training."""
  axes.set_xlabel(x_axis.label, color=LIGHT['faint'], fontsize=FONT)
  if x_axis.is_log:
    axes.set_xscale('log', base=2)
    axes.xaxis.set_major_locator(LogLocator(2, numticks=20))
    axes.xaxis.set_minor_locator(NullLocator())
  else:
    axes.xaxis.set_major_locator(MaxNLocator(4))
  axes.xaxis.set_major_formatter(StrMethodFormatter('{x:,g}'))
  if x_axis.training_x is not None:
    axes.axvline(x_axis.training_x, color=LIGHT['faint'], linewidth=0.9, linestyle=(0, (2, 2)))
    axes.annotate(
      'trained',
      (x_axis.training_x, 1),
      (3, -3),
      axes.get_xaxis_transform(),
      'offset points',
      va='top',
      fontsize=FONT - 1,
      color=LIGHT['faint'],
    )


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


def create_axes(
  width: float, height: float, left: float, right: float, top: float, bottom: float
) -> tuple[Figure, Axes]:
  """A figure with axes; all sizes and margins in inches."""
  figure = Figure(figsize=(width, height), facecolor=LIGHT['ground'])
  FigureCanvasAgg(figure)
  axes = figure.add_axes(
    (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height),
    facecolor='none',
  )
  axes.spines[['top', 'right', 'left']].set_visible(False)
  axes.spines['bottom'].set_color(LIGHT['line'])
  axes.grid(color=LIGHT['grid'], linewidth=0.8)
  axes.set_axisbelow(True)
  axes.tick_params(labelsize=FONT, color=LIGHT['line'], labelcolor=LIGHT['faint'], length=3)
  axes.tick_params(axis='y', length=0)
  axes.ticklabel_format(useOffset=False)
  return figure, axes


def draw_heading(axes: Axes, text: str, left: float) -> None:
  """The label of the y axis, horizontal, above the axis."""
  axes.annotate(
    text,
    (0, 1),
    (-left * 72, 7),
    'axes fraction',
    textcoords='offset points',
    fontsize=FONT,
    color=LIGHT['faint'],
    va='bottom',
    parse_math=False,
  )


def label_ends(figure: Figure, axes: Axes, ends: Sequence[tuple[Row, float, float]], width: float) -> None:
  """Labels at the right of the axes, near the ends of their lines without overlap, with a thin connecting
  line.
  """
  box = axes.get_position()
  edge, bottom, top = box.x1 * width, box.y0 * figure.get_figheight(), box.y1 * figure.get_figheight()
  # The positions in inches are final: reading the limits makes Matplotlib compute them.
  axes.get_xlim(), axes.get_ylim()
  points = axes.transData.transform([(x, y) for _, x, y in ends]) / figure.dpi
  order = np.argsort(points[:, 1])
  heights = spread_labels(
    points[order, 1].clip(bottom, top), LINE, bottom, max(top, bottom + LINE * len(ends))
  )
  for i, height in zip(order, heights):
    row, (x, y) = ends[i][0], points[i]
    colour = LIGHT[palette.hue(row.index, row.is_base)]
    if bottom <= y <= top:
      figure.add_artist(
        Line2D(
          [x + 0.05, edge + 0.12],
          [y, height],
          color=LIGHT['line'],
          linewidth=0.7,
          transform=figure.dpi_scale_trans,
          zorder=0,
        )
      )
    figure.add_artist(
      Line2D(
        [edge + 0.17],
        [height],
        marker=palette.marker(row.index),
        markersize=5.5,
        color=colour,
        markeredgewidth=0,
        transform=figure.dpi_scale_trans,
      )
    )
    figure.text(
      edge + 0.26,
      height,
      label_of(row, width),
      transform=figure.dpi_scale_trans,
      fontsize=FONT,
      color=LIGHT['ink'],
      va='center_baseline',
      parse_math=False,
    )


def spread_labels(heights: Sequence[float], gap: float, lowest: float, highest: float) -> np.ndarray:
  """The ascending numbers nearest to ascending `heights` (least squares), at least `gap` apart, in [lowest,
  highest].
  """
  steps = gap * np.arange(len(heights))
  return isotonic_regression(np.asarray(heights) - steps).x.clip(lowest, highest - steps[-1]) + steps


def label_of(row: Row, width: float) -> str:
  """'1 rope': the rank, as in the tables, and the name, shortened to the width."""
  room = 26 if width > NARROW else 14
  text = row.name if len(row.name) <= room else row.name[: room - 1] + '…'
  return f'{row.rank or "–"} {text}'
