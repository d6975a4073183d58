"""Attention maps as a picture: layers as rows, heads as columns."""

import pathlib
import warnings
from collections.abc import Sequence

import numpy as np

from tfm.errors import importing_extra
from tfm.evaluation.attention_maps import AttentionMaps


with importing_extra('plots'):
  from matplotlib.axes import Axes
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.colors import LinearSegmentedColormap, PowerNorm
  from matplotlib.figure import Figure
  from matplotlib.patches import Rectangle


INK, ALL, NOTHING, LINE = '#1f2933', '#1f5fa8', '#eef1f5', '#c3cad3'
# The shade is the square root of the weight, so that a weight of 0.01 is visible.
SHADES = dict(
  cmap=LinearSegmentedColormap.from_list('weight', [NOTHING, ALL]),
  norm=PowerNorm(0.5, 0, 1),
  aspect='auto',
  interpolation='nearest',
)
# Inches: a token with its label, a character, a line of text, between panels; the smallest and largest side
# of a panel, and all panels together.
TOKEN, CHARACTER, LINE_HEIGHT, BETWEEN, LEAST, MOST, TOGETHER = 0.11, 0.065, 0.22, 0.1, 1.0, 4.5, 45.0
# Maximum characters of a label.
CHARACTERS = 14


def draw(maps: AttentionMaps, title: str, file: str | pathlib.Path) -> None:
  """Writes a heat map for each layer and head, queries down and keys across, as the image type of `file`.

  Labels are on the left and on top. A panel without room for all labels shows every second, third, … one.
  Characters that matplotlib's font lacks appear as boxes.
  """
  heads = sorted({head for of_layer in maps.layers.values() for head in of_layer})
  across, down = panel_size(len(maps.keys), len(heads)), panel_size(len(maps.queries), len(maps.layers))
  left, top = (
    CHARACTER * max(len(shorten(label)) for label in labels) + lines * LINE_HEIGHT + BETWEEN
    for labels, lines in ((maps.queries, 1), (maps.keys, 2))
  )
  right, bottom = left + len(heads) * (across + BETWEEN), top + len(maps.layers) * (down + BETWEEN)

  # One pair of axes with coordinates in inches; one per panel would take minutes.
  width, height = max(right + 0.8, 0.2 + 0.08 * len(title)), max(bottom, top + 1.6)
  figure = Figure(figsize=(width, height), facecolor='white')
  FigureCanvasAgg(figure)
  axes = figure.add_axes((0, 0, 1, 1), autoscale_on=False)
  axes.set_axis_off()
  draw_text(axes, 0.1, LINE_HEIGHT / 2, title, 8)
  for row, (layer, of_layer) in enumerate(maps.layers.items()):
    y = top + row * (down + BETWEEN)
    draw_text(
      axes, LINE_HEIGHT / 2 + 0.05, y + down / 2, f'layer {layer}', 8, ha='center', weight='bold', rotation=90
    )
    for place, label in fit_labels(maps.queries, down):
      draw_text(axes, left - 0.05, y + place, label, 6, ha='right')
    for column, head in enumerate(heads):
      if head in of_layer:
        draw_heatmap(axes, of_layer[head], left + column * (across + BETWEEN), y, across, down)
  for column, head in enumerate(heads):
    x = left + column * (across + BETWEEN)
    draw_text(axes, x + across / 2, 1.5 * LINE_HEIGHT, f'head {head}', 8, ha='center', weight='bold')
    for place, label in fit_labels(maps.keys, across):
      draw_text(axes, x + place, top - 0.05, label, 6, ha='center', va='bottom', rotation=90)
  draw_scale(axes, right + 0.15, top, 1.5)
  axes.set(xlim=(0, width), ylim=(height, 0))
  with warnings.catch_warnings():
    warnings.filterwarnings('ignore', message='Glyph .* missing from')
    figure.savefig(file, dpi=144)


def panel_size(tokens: int, panels: int) -> float:
  """The size in inches of one of `panels` panels along an axis with `tokens` tokens."""
  return min(max(LEAST, TOKEN * tokens), MOST, TOGETHER / panels)


def draw_heatmap(axes: Axes, values: np.ndarray, x: float, y: float, width: float, height: float) -> None:
  """Draws a heat map with a frame."""
  axes.imshow(values, extent=(x, x + width, y + height, y), **SHADES)
  axes.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=LINE, linewidth=0.6))


def draw_scale(axes: Axes, x: float, y: float, height: float) -> None:
  """Draws the color scale."""
  draw_heatmap(axes, np.linspace(1, 0, 256)[:, None] ** 2, x, y, 0.12, height)
  for weight in (0, 0.01, 0.1, 0.25, 0.5, 1):
    draw_text(axes, x + 0.18, y + height * (1 - weight**0.5), f'{weight:g}', 6)


def draw_text(axes: Axes, x: float, y: float, text: str, size: float, **form) -> None:
  """Draws text at a position, without interpreting dollar signs as formulas."""
  axes.text(x, y, text, **dict(va='center', color=INK, fontsize=size, parse_math=False) | form)


def fit_labels(labels: Sequence[str], inches: float) -> list[tuple[float, str]]:
  """(position, text) of as many labels as fit, each at the middle of its token."""
  step = -(-len(labels) // max(1, int(inches / TOKEN + 1e-6)))
  return [((i + 0.5) * inches / len(labels), shorten(labels[i])) for i in range(0, len(labels), step)]


def shorten(label: str) -> str:
  """A label truncated to `CHARACTERS`."""
  return label if len(label) <= CHARACTERS else label[: CHARACTERS - 1] + '…'
