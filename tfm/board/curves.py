"""The metrics of runs over their steps, as plots of the report's kind."""

import math
import pathlib
from collections.abc import Mapping, Sequence, Set

from tfm.studies.report import plots
from tfm.studies.report.axes import XAxis
from tfm.studies.report.figures import to_title
from tfm.studies.report.plots import Plot
from tfm.studies.report.ranking import Series
from tfm.training import metrics


# Points of a line: more than a screen has.
POINTS = 600
# Step → value.
Curve = Mapping[int, float]


def read_curves(workdir: pathlib.Path) -> dict[str, dict[str, Curve]]:
  """Metric → split → curve, of the finite numbers of a run; the loss first.

  Raises:
    ValueError: for a metrics.jsonl that cannot be read.
  """
  curves = {'loss': {}}
  for row in metrics.read(workdir / 'metrics.jsonl'):
    for name, value in row.items():
      if name not in ('step', 'split') and isinstance(value, int | float) and math.isfinite(value):
        curves.setdefault(name, {}).setdefault(row['split'], {})[row['step']] = value
  return {name: of_split for name, of_split in curves.items() if of_split}


def plot_curves(
  series: Sequence[Series], curves: Mapping[str, Curve], label: str, diverged: Set[str] = frozenset()
) -> Plot:
  """One line for each curve, by the name of its series.

  Args:
    label: what is plotted, such as 'validation loss'; diverged: names of the runs that diverged.
  """
  label, step = label.replace('_', ' '), -(-max(map(len, curves.values())) // POINTS)
  lines = plots.mean_lines(
    series,
    {name: {0: thin_out(curve, step)} for name, curve in curves.items()},
    {(name, 0) for name in diverged},
  )
  limits = plots.start_limits(lines) if label.endswith('loss') else None
  notes = {
    f'One point of {step} is drawn.': step > 1,
    f'The y axis is clipped to the values after the first {plots.START:.0%} of the steps.': limits,
    'A dotted line with a cross is a run that diverged.': not diverged.isdisjoint(curves),
  }
  return Plot(
    label.replace(' ', '_'),
    to_title(label),
    ' '.join(note for note, applies in notes.items() if applies),
    lambda width: plots.draw_lines(lines, label, XAxis('step'), width, limits),
  )


def thin_out(curve: Curve, step: int) -> Curve:
  """Every `step`-th point, counted from the last one."""
  points = list(curve.items())
  return dict(points[::-step][::-1])
