"""Masks as pictures: which query sees which key."""

import pathlib
from collections.abc import Mapping

import numpy as np

from tfm.errors import importing_extra
from tfm.masks.protocol import Mask, density, table
from tfm.shapes import Float


with importing_extra('plots'):
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.colors import LinearSegmentedColormap
  from matplotlib.figure import Figure


# Maximum positions of one picture, and maximum cells per side.
POSITIONS, CELLS = 4096, 128

INK, VISIBLE, HIDDEN = '#1f2933', '#1f5fa8', '#eef1f5'


def draw(masks: Mapping[str, Mask], length: int, file: str | pathlib.Path) -> None:
  """Writes one panel for each title and mask, queries down and keys across, as the image type of `file`.

  Positions are 0 … length-1, at most the first `POSITIONS`. With more than `CELLS` positions a cell
  is a square of pairs, and its shade is the fraction that is visible.
  """
  figure = Figure(figsize=(4.6 * len(masks), 5), layout='constrained', facecolor='white')
  FigureCanvasAgg(figure)
  shades = LinearSegmentedColormap.from_list('visible', [HIDDEN, VISIBLE])
  shown = min(length, POSITIONS)
  for axes, (title, mask) in zip(figure.subplots(1, len(masks), squeeze=False)[0], masks.items()):
    grid = downsample(table(mask, shown))
    axes.imshow(grid, cmap=shades, vmin=0, vmax=1, extent=(0, shown, shown, 0), interpolation='nearest')
    if shown <= 32:
      edges = np.arange(shown + 1)
      axes.hlines(edges, 0, shown, color='white', linewidth=0.8)
      axes.vlines(edges, 0, shown, color='white', linewidth=0.8)
    axes.set_title(title, loc='left', fontsize=11, color=INK, fontweight='bold', wrap=True)
    size = -(-shown // len(grid))
    lines = ['key position', f'{density(mask, length):.1%} of {length} × {length} pairs visible']
    lines += [f'positions 0 … {shown - 1} of {length}'] * (shown < length)
    lines += [f'a cell is {size} × {size} positions'] * (size > 1)
    axes.set_xlabel('\n'.join(lines), fontsize=9, color=INK)
    axes.set_ylabel('query position', fontsize=9, color=INK)
    axes.xaxis.set_ticks_position('top')
    axes.tick_params(labelsize=8, colors=INK, length=2)
    axes.spines[:].set_color('#c3cad3')
  figure.savefig(file, dpi=144)


def downsample(seen: np.ndarray) -> Float[np.ndarray, 'N N']:
  """Reduces a [T, T] table to at most `CELLS` × `CELLS` cells: the visible fraction of each."""
  size = -(-len(seen) // CELLS)
  starts = np.arange(0, len(seen), size)
  total = np.add.reduceat(np.add.reduceat(seen.astype(np.int64), starts, 0), starts, 1)
  widths = np.diff([*starts, len(seen)])
  return total / (widths[:, None] * widths[None, :])
