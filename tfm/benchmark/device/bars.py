"""The picture of `tfm benchmark device`: bars of each group."""

import itertools
import pathlib
from collections.abc import Sequence

from tfm.benchmark.device import report
from tfm.errors import importing_extra


with importing_extra('plots'):
  import matplotlib

  matplotlib.use('agg')
  import matplotlib.pyplot as plt


def draw_bars(path: pathlib.Path, results: Sequence[report.Result], title: str) -> None:
  """Writes a picture with a panel of bars for each group that has numbers; none if no group has."""
  groups = {
    group: [
      (report.describe(cell), found[report.HEADLINES[group][0]])
      for cell, found in members
      if report.HEADLINES[group][0] in found
    ]
    for group, members in itertools.groupby(results, key=lambda result: result[0].group)
  }
  groups = {group: bars for group, bars in groups.items() if bars}
  if not groups:
    return
  heights = [0.6 + 0.22 * len(bars) for bars in groups.values()]
  figure, panels = plt.subplots(
    len(groups), 1, figsize=(9, sum(heights) + 1), height_ratios=heights, squeeze=False, layout='constrained'
  )
  figure.suptitle(title, fontsize=9)
  for panel, (group, bars) in zip(panels.flat, groups.items()):
    names = [*dict.fromkeys(itertools.chain(*(settings for settings, _ in bars)))]
    shown = [name for name in names if len({str(settings.get(name)) for settings, _ in bars}) > 1]
    labels = [
      ' '.join(describe(name, settings[name]) for name in shown if name in settings) for settings, _ in bars
    ]
    colours = ['tab:orange' if settings['by'] == 'PyTorch' else 'tab:blue' for settings, _ in bars]
    panel.barh(range(len(bars)), [value for _, value in bars], color=colours)
    panel.set_yticks(range(len(bars)), labels, fontsize=6)
    panel.invert_yaxis()
    panel.set_title(f'{group}: {report.HEADLINES[group][1]}', fontsize=8, loc='left')
  figure.savefig(path, dpi=110)
  plt.close(figure)


def describe(name: str, value: object) -> str:
  """A setting in a word; of whether something is so, with its name."""
  return f'{name}={value}' if isinstance(value, bool) else str(value)
