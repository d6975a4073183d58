"""Panels that show what fills a slot, in a picture or in the terminal: masks, tables, curves."""

import abc
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tfm.errors import importing_extra
from tfm.masks.protocol import Mask, density, table
from tfm.shapes import Float, Int


if TYPE_CHECKING:
  with importing_extra('plots'):
    from matplotlib.axes import Axes


# Maximum positions of a mask; cells per side in a picture and in the terminal; curves, and rows of a table.
POSITIONS, CELLS, TEXT_CELLS, CURVES, ROWS = 4096, 128, 32, 8, 13
# Of nothing to all, in the terminal.
SHADES = '·░▒▓█'
BAR = 24  # characters

INK, LINE, VISIBLE, HIDDEN, NEGATIVE = '#1f2933', '#c3cad3', '#1f5fa8', '#eef1f5', '#b3261e'


@dataclasses.dataclass(frozen=True)
class Panel(abc.ABC):
  """What is drawn: a title, and content that subclasses draw."""

  title: str

  @abc.abstractmethod
  def draw(self, axes: 'Axes') -> None:
    """Draws the content into axes of a picture."""

  @abc.abstractmethod
  def to_text(self) -> RenderableType:
    """The content for a terminal."""


@dataclasses.dataclass(frozen=True)
class MaskPanel(Panel):
  """Which query sees which key, queries down and keys across.

  Positions are 0 … length-1, at most the first `POSITIONS`. With more positions than cells a cell is a square
  of pairs, and its shade is the fraction that is visible.
  """

  mask: Mask
  length: int

  def draw(self, axes):
    shown = min(self.length, POSITIONS)
    grid = downsample(table(self.mask, shown), CELLS)
    _draw_heat_map(axes, grid, (0, shown, shown, 0), (HIDDEN, VISIBLE), (0, 1))
    if shown <= 32:
      edges = np.arange(shown + 1)
      axes.hlines(edges, 0, shown, color='white', linewidth=0.8)
      axes.vlines(edges, 0, shown, color='white', linewidth=0.8)
    axes.set_xlabel('\n'.join(['key position', *self._describe(len(grid))]))
    axes.set_ylabel('query position')
    axes.xaxis.set_ticks_position('top')

  def to_text(self):
    grid = downsample(table(self.mask, min(self.length, POSITIONS)), TEXT_CELLS)
    lines = ['queries down, keys across', *self._describe(len(grid))]
    return Text('\n'.join([_shade(grid), *lines]))

  def _describe(self, cells: int) -> list[str]:
    shown = min(self.length, POSITIONS)
    size = -(-shown // cells)
    lines = [f'{density(self.mask, self.length):.1%} of {self.length} × {self.length} pairs visible']
    lines += [f'positions 0 … {shown - 1} of {self.length}'] * (shown < self.length)
    return lines + [f'a cell is {size} × {size} positions'] * (size > 1)


@dataclasses.dataclass(frozen=True)
class TablePanel(Panel):
  """A table of numbers, positions down and channels across: blue above 0, red below."""

  values: Float[np.ndarray, 'T D']

  def draw(self, axes):
    most = np.abs(self.values).max() or 1.0
    rows, columns = self.values.shape
    _draw_heat_map(axes, self.values, (0, columns, rows, 0), (NEGATIVE, 'white', VISIBLE), (-most, most))
    axes.set_xlabel(f'channel\nfrom {self.values.min():.3g} to {self.values.max():.3g}')
    axes.set_ylabel('position')
    axes.set_aspect('auto')

  def to_text(self):
    rows, columns = (
      np.linspace(0, size - 1, min(size, TEXT_CELLS)).round().astype(int) for size in self.values.shape
    )
    cells = np.abs(self.values[rows][:, columns]) / (np.abs(self.values).max() or 1.0)
    T, D = self.values.shape
    lines = [
      _shade(cells),
      f'positions 0 … {T - 1} down, channels 0 … {D - 1} across; the shade is the size of a number, '
      f'at most {np.abs(self.values).max():.3g}',
    ]
    return Text('\n'.join(lines))


@dataclasses.dataclass(frozen=True)
class CurvesPanel(Panel):
  """Curves over one x axis, at most the first `CURVES`.

  Attributes:
    x_label, x: of the axis; curves: label → values; note: a line below.
  """

  x_label: str
  x: Int[np.ndarray, 'N']
  curves: Mapping[str, Float[np.ndarray, 'N']]
  note: str = ''

  def draw(self, axes):
    for label, values in self._shown().items():
      axes.plot(self.x, values, linewidth=1.4, label=label)
    axes.set_xlabel('\n'.join([self.x_label, *self._notes()]))
    axes.grid(alpha=0.3)
    if len(self.curves) > 1:
      axes.legend(fontsize=8, frameon=False)

  def to_text(self):
    rich_table = Table(box=None, padding=(0, 2, 0, 0))
    shown = self._shown()
    for name in (self.x_label, *shown):
      rich_table.add_column(name, justify='right')
    if len(shown) == 1:
      rich_table.add_column('')
    lengths = _bar_lengths(next(iter(shown.values())))
    for i in np.linspace(0, len(self.x) - 1, min(len(self.x), ROWS)).round().astype(int):
      cells = [f'{self.x[i]:,g}', *(f'{values[i] + 0.0:.4g}' for values in shown.values())]  # no -0
      rich_table.add_row(*cells, *(['█' * lengths[i]] if len(shown) == 1 else []))
    return Group(rich_table, *map(Text, self._notes()))

  def _shown(self) -> dict[str, np.ndarray]:
    return dict(list(self.curves.items())[:CURVES])

  def _notes(self) -> list[str]:
    more = len(self.curves) - CURVES
    return [*([self.note] if self.note else []), *([f'and {more} more'] if more > 0 else [])]


def draw_panels(panels: Sequence[Panel], file: str | pathlib.Path) -> None:
  """Writes the panels side by side, as the image type of `file`."""
  with importing_extra('plots'):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

  figure = Figure(figsize=(4.6 * len(panels), 5), layout='constrained', facecolor='white')
  FigureCanvasAgg(figure)
  for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
    panel.draw(axes)
    axes.set_title(panel.title, loc='left', fontsize=11, color=INK, fontweight='bold', wrap=True)
    axes.xaxis.label.set(fontsize=9, color=INK)
    axes.yaxis.label.set(fontsize=9, color=INK)
    axes.tick_params(labelsize=8, colors=INK, length=2)
    axes.spines[:].set_color(LINE)
  figure.savefig(file, dpi=144)


def downsample(seen: np.ndarray, cells: int) -> Float[np.ndarray, 'N N']:
  """Reduces a [T, T] table to at most `cells` × `cells` cells: the visible fraction of each."""
  size = -(-len(seen) // cells)
  starts = np.arange(0, len(seen), size)
  total = np.add.reduceat(np.add.reduceat(seen.astype(np.int64), starts, 0), starts, 1)
  widths = np.diff([*starts, len(seen)])
  return total / (widths[:, None] * widths[None, :])


def _draw_heat_map(axes, values, extent, colours, limits) -> None:
  with importing_extra('plots'):
    from matplotlib.colors import LinearSegmentedColormap

  shades = LinearSegmentedColormap.from_list('shades', colours)
  low, high = limits
  axes.imshow(values, cmap=shades, vmin=low, vmax=high, extent=extent, interpolation='nearest')


def _shade(cells: np.ndarray) -> str:
  """Cells from 0 to 1 as lines of two characters each; only 0 and 1 have the outermost shades."""
  inner = 1 + np.floor(cells * (len(SHADES) - 2)).astype(int).clip(0, len(SHADES) - 3)
  levels = np.where(cells <= 0, 0, np.where(cells >= 1, len(SHADES) - 1, inner))
  return '\n'.join(''.join(SHADES[level] * 2 for level in row) for row in levels)


def _bar_lengths(values: np.ndarray) -> list[int]:
  """Characters of the bar of each value, from the least of all, or 0, to the largest."""
  low, high = min(values.min(), 0), max(values.max(), 0)
  return [round(BAR * (value - low) / ((high - low) or 1)) for value in values.tolist()]
