"""Attention maps as a picture: layers down, heads across."""

import pathlib
import warnings
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tfm.evaluation.attention import Maps


INK, ALL, NOTHING, LINE = '#1f2933', '#1f5fa8', '#eef1f5', '#c3cad3'
# The shade is the square root of the weight, so that a hundredth is still seen.
SHADES = dict(
  cmap=LinearSegmentedColormap.from_list('weight', [NOTHING, ALL]),
  norm=PowerNorm(0.5, 0, 1),
  aspect='auto',
  interpolation='nearest',
)
# Inches: of a token with its label, a character of it, a line of text, between panels; of a panel's sides, and of
# all panels together.
TOKEN, CHARACTER, LINE_HEIGHT, BETWEEN, LEAST, MOST, TOGETHER = 0.11, 0.065, 0.22, 0.1, 1.0, 4.5, 45.0
# Characters of a label at most.
CHARACTERS = 14


def draw(maps: Maps, title: str, file: str | pathlib.Path) -> None:
  """Writes a heat map for each layer and head, queries down and keys across, as the image type of `file`.

  Labels stand left and on top. Where a panel has no room for all it has every second, third, … of them.
  Characters that matplotlib's font lacks are boxes.
  """
  heads = sorted({head for of_layer in maps.layers.values() for head in of_layer})
  across, down = side(len(maps.keys), len(heads)), side(len(maps.queries), len(maps.layers))
  left, top = (
    CHARACTER * max(len(short(label)) for label in labels) + lines * LINE_HEIGHT + BETWEEN
    for labels, lines in ((maps.queries, 1), (maps.keys, 2))
  )
  right, bottom = left + len(heads) * (across + BETWEEN), top + len(maps.layers) * (down + BETWEEN)

  # One pair of axes in inches from the corner: hundreds of them would take minutes.
  width, height = max(right + 0.8, 0.2 + 0.08 * len(title)), max(bottom, top + 1.6)
  figure = Figure(figsize=(width, height), facecolor='white')
  FigureCanvasAgg(figure)
  axes = figure.add_axes((0, 0, 1, 1), autoscale_on=False)
  axes.set_axis_off()
  write(axes, 0.1, LINE_HEIGHT / 2, title, 8)
  for row, (layer, of_layer) in enumerate(maps.layers.items()):
    y = top + row * (down + BETWEEN)
    write(
      axes, LINE_HEIGHT / 2 + 0.05, y + down / 2, f'layer {layer}', 8, ha='center', weight='bold', rotation=90
    )
    for place, label in legible(maps.queries, down):
      write(axes, left - 0.05, y + place, label, 6, ha='right')
    for column, head in enumerate(heads):
      if head in of_layer:
        show(axes, of_layer[head], left + column * (across + BETWEEN), y, across, down)
  for column, head in enumerate(heads):
    x = left + column * (across + BETWEEN)
    write(axes, x + across / 2, 1.5 * LINE_HEIGHT, f'head {head}', 8, ha='center', weight='bold')
    for place, label in legible(maps.keys, across):
      write(axes, x + place, top - 0.05, label, 6, ha='center', va='bottom', rotation=90)
  scale(axes, right + 0.15, top, 1.5)
  axes.set(xlim=(0, width), ylim=(height, 0))
  with warnings.catch_warnings():
    warnings.filterwarnings('ignore', message='Glyph .* missing from')
    figure.savefig(file, dpi=144)


def side(tokens: int, panels: int) -> float:
  """Inches of one of so many panels, along an axis of so many tokens."""
  return min(max(LEAST, TOKEN * tokens), MOST, TOGETHER / panels)


def show(axes: Axes, values: np.ndarray, x: float, y: float, width: float, height: float) -> None:
  """A heat map in a frame."""
  axes.imshow(values, extent=(x, x + width, y + height, y), **SHADES)
  axes.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=LINE, linewidth=0.6))


def scale(axes: Axes, x: float, y: float, height: float) -> None:
  """What the shades mean."""
  show(axes, np.linspace(1, 0, 256)[:, None] ** 2, x, y, 0.12, height)
  for weight in (0, 0.01, 0.1, 0.25, 0.5, 1):
    write(axes, x + 0.18, y + height * (1 - weight**0.5), f'{weight:g}', 6)


def write(axes: Axes, x: float, y: float, text: str, size: float, **form) -> None:
  """Text at a place; a dollar sign is one, and begins no formula."""
  axes.text(x, y, text, **dict(va='center', color=INK, fontsize=size, parse_math=False) | form)


def legible(labels: Sequence[str], inches: float) -> list[tuple[float, str]]:
  """(place, text) of as many labels as there is room for, each at the middle of its token."""
  step = -(-len(labels) // max(1, int(inches / TOKEN + 1e-6)))
  return [((i + 0.5) * inches / len(labels), short(labels[i])) for i in range(0, len(labels), step)]


def short(label: str) -> str:
  """A label cut to what an axis has room for."""
  return label if len(label) <= CHARACTERS else label[: CHARACTERS - 1] + '…'
