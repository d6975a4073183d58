"""Length extrapolation as a picture: the loss against the length, and by position in the row."""

import pathlib
from collections.abc import Sequence

from tfm.errors import importing_extra
from tfm.evaluation.length_extrapolation import Bin, LengthRecord


with importing_extra('plots'):
  from matplotlib.axes import Axes
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure
  from matplotlib.ticker import FuncFormatter


INK, LINE, GRID, TRAINED = '#1f2933', '#c3cad3', '#e4e8ee', '#8a94a3'


def draw(records: Sequence[LengthRecord], trained: int, title: str, file: str | pathlib.Path) -> None:
  """Writes an image: one panel of loss against length, with a line per protocol, and per protocol one panel
  of loss by position, with a line per length.

  A dashed line marks the training length; impossible lengths are listed below. Sliding windows omit the few
  targets at the start of the split that have less context than the others.
  """
  protocols = list(dict.fromkeys(record.protocol for record in records))
  figure = Figure(figsize=(5.2 * (1 + len(protocols)), 4.6), layout='constrained', facecolor='white')
  FigureCanvasAgg(figure)
  figure.suptitle(title, x=0.01, ha='left', fontsize=10, color=INK)
  first, *rest = figure.subplots(1, 1 + len(protocols), squeeze=False, sharey=True)[0]
  for protocol in protocols:
    measured = sorted(
      (r for r in records if r.protocol == protocol and not r.impossible), key=lambda r: r.length
    )
    first.plot(
      [r.length for r in measured], [r.loss for r in measured], marker='o', markersize=4, label=protocol
    )
  style_axes(first, 'length of the rows (tokens)', trained)
  first.set_ylabel('loss (nats per token)', color=INK)
  missing = sorted({r.length for r in records if r.impossible})
  if missing:
    first.set_xlabel(f'length of the rows (tokens)\nimpossible: {", ".join(map(str, missing))}', color=INK)
  for axes, protocol in zip(rest, protocols):
    for r in records:
      if r.protocol == protocol and not r.impossible:
        bins = full_bins(r)
        # A logarithmic axis has no position 0, so it shows the number of tokens read, which is one more.
        axes.plot(
          [(b.first + b.last) / 2 + 1 for b in bins],
          [b.loss for b in bins],
          marker='o',
          markersize=2.5,
          linewidth=1.2,
          label=f'{r.length}',
        )
    style_axes(axes, f'{protocol}: tokens of the row that were read', trained)
  figure.savefig(file, dpi=144)


def full_bins(record: LengthRecord) -> list[Bin]:
  """The bins of positions that count in every row, not only in the first rows of a split."""
  return [b for b in record.positions if b.last >= record.length - record.stride]


def style_axes(axes: Axes, label: str, trained: int) -> None:
  """Styles the axes of a panel."""
  axes.set_xscale('log', base=2)
  axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f'{x:g}'))
  axes.axvline(trained, color=TRAINED, linestyle='--', linewidth=1)
  axes.set_xlabel(label, color=INK)
  axes.grid(which='major', color=GRID)
  axes.spines[:].set_color(LINE)
  if axes.get_legend_handles_labels()[0]:
    axes.legend(fontsize=8, frameon=False)
