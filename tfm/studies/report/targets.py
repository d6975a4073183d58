"""What an arm costs until its loss is that of its base in the end: steps, compute and time to target."""

import datetime
from collections.abc import Callable, Mapping

import numpy as np

from tfm.errors import importing_extra
from tfm.studies.report.ranking import Ranking
from tfm.studies.report.values import count_diverged, mean_curves


with importing_extra('ablation'):
  from matplotlib.ticker import EngFormatter


# What a token of training costs an arm, and the label of the axis.
TOKEN_COSTS: Mapping[str, tuple[str, Callable[[dict], float]]] = {
  'flops': ('training FLOPs', lambda arm: arm['flops_per_token']),
  'time': ('seconds of training', lambda arm: 1 / arm['tokens_per_second']),
}


def cost_of_steps(arm: dict, key: str, share: float) -> float | None:
  """What a share of the steps of an arm's training costs; None if it is not known."""
  _, of_token = TOKEN_COSTS[key]
  needed = 'tokens', {'flops': 'flops_per_token', 'time': 'tokens_per_second'}[key]
  return share * arm['tokens'] * of_token(arm) if all(arm.get(field) for field in needed) else None


def steps_to(curve: Mapping[float, float], target: float) -> float | None:
  """The first step at which a loss, linear between its steps, is the target or less; None if it never is."""
  steps, losses = [*curve], [*curve.values()]
  for i, loss in enumerate(losses):
    if loss <= target:
      return steps[0] if i == 0 else float(np.interp(-target, [-losses[i - 1], -loss], steps[i - 1 : i + 1]))
  return None


def list_targets(results: dict, ranking: Ranking) -> list[tuple[str, list[str]]]:
  """Arm → target, steps, training FLOPs and time; [] unless the loss is the metric and arms have curves."""
  curves, arms = mean_curves(results), {arm['name']: arm for arm in results['arms']}
  rows, diverged = [], count_diverged(results, results['study']['metric'])
  for row in ranking.rows:
    base = curves.get(row.name if row.is_base else row.compared_with)
    if results['study']['metric'] != 'loss' or row.name not in curves or not base:
      continue
    if diverged[row.name] or diverged[row.compared_with or row.name]:
      rows.append((row.name, ['runs diverged', *'–––']))
      continue
    curve, target = curves[row.name], [*base.values()][-1]
    step = steps_to(curve, target)
    costs = [
      None if step is None else cost_of_steps(arms[row.name], key, step / [*curve][-1]) for key in TOKEN_COSTS
    ]
    cells = [
      f'{target:.4g}',
      'not reached' if step is None else f'{step:,.0f}',
      '–' if costs[0] is None else EngFormatter(places=2, sep=' ')(costs[0]),
      '–' if costs[1] is None else str(datetime.timedelta(seconds=round(costs[1]))),
    ]
    rows.append((row.name, cells))
  return rows if len(rows) > 1 else []
