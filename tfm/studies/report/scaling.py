"""A study with scales in its report: the curves of loss against compute, what they say, and their plot."""

import functools
import math
from collections.abc import Mapping

import numpy as np

from tfm.studies.report import plots
from tfm.studies.report.plots import Plot
from tfm.studies.report.ranking import Series
from tfm.studies.report.values import count_diverged, scalar_values
from tfm.studies.report.wording import format_number, join_names
from tfm.studies.statistics.scaling import DRAWS, Multiplier, ScalingCurve, compare_curves, read_multipliers
from tfm.studies.study import split_last


# Series → (compute, losses of its seeds) at each scale.
Points = Mapping[str, list[tuple[float, list[float]]]]


def list_points(results: dict) -> Points:
  """The losses of the arms of each series at each scale that has any, by compute: training FLOPs."""
  study, points = results['study'], {}
  if not study.get('scales'):
    return {}
  losses = scalar_values(results, study['metric'])
  for arm in results['arms']:
    series, _ = split_last(arm['name'])
    if of_arm := [*losses[arm['name']].values()]:
      points.setdefault(series, []).append((_compute(arm), of_arm))
  return {series: sorted(of_series) for series, of_series in points.items()}


def _compute(arm: dict) -> float:
  """The training FLOPs of a run of an arm."""
  return arm['flops_per_token'] * arm['tokens']


def list_diverged(results: dict) -> list[str]:
  """The series of which a run diverged at some scale."""
  counts = count_diverged(results, results['study']['metric'])
  return [*dict.fromkeys(split_last(arm)[0] for arm, count in counts.items() if count)]


def complete_points(results: dict) -> Points:
  """The points of the series with results at all scales of which no run diverged; {} if the base is none."""
  if not (scales := results['study'].get('scales')):
    return {}
  base, _ = split_last(results['study']['base'])
  diverged = list_diverged(results)  # the mean of what finished is not that of all
  points = {
    series: of_series
    for series, of_series in list_points(results).items()
    if len(of_series) == len(scales) and series not in diverged
  }
  return points if base in points else {}


def fit_curves(results: dict) -> dict[str, ScalingCurve]:
  """The curve of each of the complete series, the base's first; {} if there are none."""
  points = {
    series: tuple((compute, float(np.mean(losses))) for compute, losses in of_series)
    for series, of_series in complete_points(results).items()
  }
  return _fit(tuple(points.items()), split_last(results['study']['base'])[0]) if points else {}


def read_curves(results: dict) -> dict[str, list[Multiplier | None]]:
  """Series → its multiplier at each scale, read between the points of the base; {} if there are none."""
  points = complete_points(results)
  return read_multipliers(points, split_last(results['study']['base'])[0]) if points else {}


@functools.lru_cache(maxsize=1)  # the page, its text and the terminal show the same curves
def _fit(points: tuple, base: str) -> dict[str, ScalingCurve]:
  return compare_curves(dict(points), base)


def describe_curves(results: dict) -> list[str]:
  """A part of the answer for each series: what a FLOP of it is worth in FLOPs of the base."""
  curves, read = fit_curves(results), read_curves(results)
  base, parts = next(iter(curves), None), []
  for name, curve in curves.items():
    if name == base:
      continue
    first, last = (f'{format_multiplier(m)}{{}} at {format_compute(m.compute)}' for m in curve.multipliers)
    worth, relation = first.format(f' FLOPs of {base}'), _RELATIONS[curve.relation](curve)
    parts.append(f'a FLOP of {name} is worth {worth} and {last.format("")}: {relation}')
    if found := sorted((m for m in read[name] if m), key=lambda m: m.value):
      ends = dict.fromkeys(map(format_multiplier, (found[0], found[-1])))
      parts.append(f'read without a fit it is worth {" to ".join(ends)}')
  reasons, diverged = {}, list_diverged(results)
  for name in list_points(results) if curves else ():
    if name not in curves:
      reason = 'of which runs diverged' if name in diverged else 'without results at some scales'
      reasons.setdefault(reason, []).append(name)
  return parts + [f'no curve of {join_names(names)}, {reason}' for reason, names in reasons.items()]


_RELATIONS = {
  'better': lambda curve: 'it is ahead at all scales',
  'worse': lambda curve: 'it is behind at all scales',
  'crosses': lambda curve: f'the curves cross at {format_compute(curve.crossing)}',
  'undecided': lambda curve: (
    'undecided at '
    + ' and '.join(format_compute(m.compute) for m in curve.multipliers if m.word == 'undecided')
  ),
}


def explain_curves(results: dict) -> list[str]:
  """A sentence on how the curves are fitted."""
  curves = fit_curves(results)
  if not curves:
    return []
  floor = format_number(next(iter(curves.values())).floor, 3)
  return [
    f'Curves: loss = E + A C^−α of the means over seeds, C in training FLOPs, fitted jointly with one E, '
    f'{floor} (Hoffmann et al. 2022, §3.3: Huber loss of log loss); intervals by {DRAWS} bootstrap fits, '
    'those of multipliers hold all together. A multiplier is the compute of the base for the same loss, '
    "divided by the arm's. Without a fit it is read between the points of the base, where these enclose the "
    "loss; its intervals are of seeds, all hold together, and leave out how the base's curve bends between."
  ]


def tabulate_curves(results: dict) -> list[tuple[str, list[str]]]:
  """Series → its exponent, multipliers at the smallest and the largest compute, and relation to the base."""
  return [
    (
      name,
      [
        f'{curve.exponent:.3f} [{curve.exponent_interval[0]:.3f}, {curve.exponent_interval[1]:.3f}]',
        *([format_multiplier(m) for m in curve.multipliers] or ['–', '–']),
        curve.relation if curve.multipliers else 'base',
      ],
    )
    for name, curve in fit_curves(results).items()
  ]


def tabulate_read(results: dict) -> list[tuple[str, list[str]]]:
  """Series → its multiplier at each scale, by compute, without a fit; '–' where the base has no such loss."""
  return [
    (name, [format_multiplier(m) if m else '–' for m in of_series])
    for name, of_series in read_curves(results).items()
  ]


def order_scales(results: dict) -> list[str]:
  """The scales by the compute of the base, of a study that has them."""
  base, _ = split_last(results['study']['base'])
  named = [(*split_last(arm['name']), arm) for arm in results['arms']]
  compute = {scale: _compute(arm) for series, scale, arm in named if series == base}
  return sorted(compute, key=compute.get)


def list_scaling_plots(results: dict, label: str) -> list[Plot]:
  """The losses against compute with the curves, if there are any."""
  curves = fit_curves(results)
  lines = [
    plots.Line(
      Series(None, i, name),
      [compute for compute, _ in of_series],
      [float(np.mean(losses)) for _, losses in of_series],
      [min(losses) for _, losses in of_series],
      [max(losses) for _, losses in of_series],
    )
    for i, (name, of_series) in enumerate(list_points(results).items())
  ]
  if not curves:
    return []
  return [
    Plot(
      'scaling',
      'Loss against compute',
      'Means over seeds at each scale, bands from the lowest to the highest seed; dashed: the fitted curves.',
      lambda width: plots.draw_scaling(lines, curves, label, width),
    )
  ]


def format_multiplier(multiplier: Multiplier) -> str:
  """'1.52 [1.45, 1.60]'."""
  low, high = (format_number(x, 2) if math.isfinite(x) else '∞' for x in (multiplier.low, multiplier.high))
  return f'{format_number(multiplier.value, 2)} [{low}, {high}]'


def format_compute(compute: float) -> str:
  """'3.5e+14'."""
  return f'{compute:.2g}'
