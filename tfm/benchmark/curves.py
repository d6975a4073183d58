"""Time and memory against length: fitted exponents and a plot."""

import pathlib
from collections.abc import Mapping

import numpy as np

from tfm.errors import importing_extra


with importing_extra('plots'):
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure


INK = '#1f2933'
# Shorter lengths are left out of the fit: costs that do not depend on length dominate there.
MIN_FIT_LENGTH = 2048

Curve = Mapping[int, float]


def fit_exponent(curve: Curve, min_length: int = MIN_FIT_LENGTH) -> float | None:
  """The slope p of log value over log length, value ∝ lengthᵖ, by least squares from `min_length` on."""
  points = [(length, value) for length, value in curve.items() if length >= min_length and value > 0]
  if len(points) < 3:
    return None
  slope, _ = np.polyfit(*np.log(np.array(points)).T, 1)
  return float(slope)


def draw_curves(panels: Mapping[str, Mapping[str, Curve]], title: str, file: str | pathlib.Path) -> None:
  """Writes one log-log panel per title, with one line per name and its exponent in the legend."""
  columns = min(2, len(panels))
  rows = -(-len(panels) // columns)
  figure = Figure(figsize=(6.4 * columns, 5.6 * rows), layout='constrained', facecolor='white')
  FigureCanvasAgg(figure)
  figure.suptitle(title, x=0.01, ha='left', fontsize=10, color=INK)
  for axes, (label, curves) in zip(figure.subplots(rows, columns, squeeze=False).flat, panels.items()):
    # Ten colours, then another marker: no two curves look the same.
    for i, (name, curve) in enumerate(curves.items()):
      slope = fit_exponent(curve)
      axes.plot(
        list(curve),
        list(curve.values()),
        marker='os^'[i // 10 % 3],
        markersize=4,
        color=f'C{i % 10}',
        label=name if slope is None else f'{name}: {slope:.2f}',
      )
    axes.set_xscale('log', base=2)
    axes.set_yscale('log')
    axes.set_xlabel('length (tokens)', color=INK)
    axes.set_ylabel(label, color=INK)
    axes.grid(which='major', color='#e4e8ee')
    axes.spines[:].set_color('#c3cad3')
    axes.legend(title=f'slope from {MIN_FIT_LENGTH} on', fontsize=8, title_fontsize=8, frameon=False)
  figure.savefig(file, dpi=144)
