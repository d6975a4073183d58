"""The coordinate check as a picture: how far activations move, by width."""

import pathlib

from tfm.analysis.coordinate_check import Coordinates
from tfm.errors import importing_extra
from tfm.evaluation.length_plot import GRID, INK


with importing_extra('plots'):
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure
  from matplotlib.ticker import NullFormatter


def draw(found: Coordinates, file: str | pathlib.Path) -> None:
  """Writes an image: the change after the last step against the width, with a line per activation; flat lines
  mean that hyperparameters can be carried over."""
  figure = Figure(figsize=(5.6, 4.2), layout='constrained', facecolor='white')
  FigureCanvasAgg(figure)
  axes = figure.subplots()
  for (name, changes), exponent in zip(found.changes.items(), found.exponents().values()):
    axes.plot(
      found.widths, changes[:, -1], marker='o', markersize=4, label=f'{name} (exponent {exponent:+.2f})'
    )
  axes.set(xscale='log', yscale='log', xlabel='width', ylabel='change since initialization (RMS)')
  axes.set_xticks(found.widths, list(map(str, found.widths)))
  axes.xaxis.set_minor_formatter(NullFormatter())
  axes.grid(color=GRID)
  axes.tick_params(colors=INK)
  axes.legend(fontsize=8, frameon=False)
  figure.savefig(file, dpi=144)
