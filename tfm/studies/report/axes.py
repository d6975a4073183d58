"""The axes of a report's plots: sizes, scales, and labels that do not overlap."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfm.errors import importing_extra
from tfm.studies.report import palette
from tfm.studies.report.palette import LIGHT
from tfm.studies.report.ranking import Series


with importing_extra('ablation'):
  from matplotlib.axes import Axes
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure
  from matplotlib.lines import Line2D
  from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter
  from scipy.optimize import isotonic_regression


# Inches: the width of a plot on a laptop and on a phone, of a character of a label, and the height of a line.
WIDE, NARROW = 6.4, 3.55
CHARACTER, LINE = 0.078, 0.19
FONT = 9


class XAxis(NamedTuple):
  """The x axis of lines.

  Attributes:
    label: of the axis; base: of its logarithm; None: it is linear.
    training_x: the x of training, which a vertical line marks; None: no line.
  """

  label: str
  base: int | None = None
  training_x: float | None = None


def format_x_axis(axes: Axes, x_axis: XAxis) -> None:
  """Sets label, scale and ticks, and marks the x of training."""
  axes.set_xlabel(x_axis.label, color=LIGHT['faint'], fontsize=FONT)
  if x_axis.base:
    axes.set_xscale('log', base=x_axis.base)
    subs = (1, 3) if x_axis.base == 10 else (1,)
    axes.xaxis.set_major_locator(LogLocator(x_axis.base, subs, numticks=20))
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


def label_ends(figure: Figure, axes: Axes, ends: Sequence[tuple[Series, float, float]], width: float) -> None:
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


def label_of(series: Series, width: float) -> str:
  """The label, shortened to the width."""
  room, text = (28 if width > NARROW else 16), series.label
  return text if len(text) <= room else text[: room - 1] + '…'
