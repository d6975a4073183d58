"""The plots of a report: which ones the results allow, their titles and captions."""

import re
import urllib.parse
from collections.abc import Iterator, Sequence

from tfm.studies.learning_rates import choose_rate, list_rates_tried
from tfm.studies.report import plots, scaling, targets, values
from tfm.studies.report.axes import XAxis
from tfm.studies.report.metric_tests import MAX_COLUMNS
from tfm.studies.report.plots import Plot
from tfm.studies.report.ranking import Ranking, Row


# Fields of an arm that are costs, and the labels of their axes.
COSTS = {
  'parameters': 'parameters',
  'flops_per_token': 'training FLOPs per token',
  'memory_bytes': 'bytes of memory',
  'tokens_per_second': 'training tokens/s',
}
BAND = 'Lines are means over seeds; bands reach from the lowest to the highest seed.'
LOSSES = {'train': 'Training', 'validation': 'Validation'}
# Costs that differ by less are not plotted: matching allows this difference.
EQUAL = 0.02


def list_plots(results: dict, ranking: Ranking) -> Iterator[Plot]:
  """All plots that the results allow."""
  study, rows = results['study'], ranking.rows
  metric = study['metric']
  label = f'{metric}, {"lower" if study["lower_is_better"] else "higher"} is better'
  has_base_range = len(ranking.bases) == 1 and any(
    row.is_base and row.summary and len(row.values) > 1 for row in rows
  )
  yield Plot(
    'ranking',
    to_title(f'{metric} of each arm'),
    'Ticks are seeds, the marker is their mean, the bar its 95 % interval.'
    + (' The grey band is the range of the base over its seeds.' if has_base_range else ''),
    lambda width: plots.draw_ranking(rows, label, width),
  )
  yield from scaling.list_scaling_plots(results, label)
  yield from _list_rates(results, ranking, label)
  yield from _list_curves(results, rows)
  yield from _list_curves_by_cost(results, rows)
  yield from _list_metrics_by_x(results, rows)
  for name, (x_label, cost) in list_costs(results, rows).items():
    yield Plot(
      f'cost_{urllib.parse.quote(name, safe="")}',
      to_title(f'{metric} against {x_label}'),
      'Mean and 95 % interval of each arm at its cost.',
      lambda width, cost=cost, x_label=x_label: plots.draw_scatter(rows, cost, label, x_label, width),
    )


def _list_rates(results: dict, ranking: Ranking, label: str) -> Iterator[Plot]:
  """The metric of each arm at each learning rate tried, if there are any."""
  arms, is_lower = {arm['name']: arm for arm in results['arms']}, ranking.criterion.lower_is_better
  lines, optima, runs = [], {}, results['study'].get('runs_per_rate', 1)
  for row in ranking.rows:
    tried = (arms[row.name].get('rates') or {}).get('reached', {})
    reached = {rate: value for rate, value in sorted((float(r), v) for r, v in tried.items())}
    if reached:
      curve = [*reached.values()]
      lines.append(plots.Line(row, [*reached], curve, curve, curve))
      of_all = [*map(float, list_rates_tried(arms[row.name]))]
      optima[row.name] = choose_rate(arms[row.name]['rates'], of_all, is_lower)
  if lines:
    has_goal = any(arms[name]['rates'].get('steps') for name in optima)
    best = 'best' + ' (of the rates that reach the goal, the fastest)' * has_goal
    yield Plot(
      'rates',
      to_title(f'{results["study"]["metric"]} against learning rate'),
      f'{"One run" if runs == 1 else f"The mean of {runs} runs"} at each rate that was tried in full; the '
      f'ring is the rate of the arm, at the extremum of the parabola through the {best} and its neighbours.',
      lambda width: plots.draw_rates(lines, optima, label, width),
    )


def _list_curves(results: dict, rows: Sequence[Row]) -> Iterator[Plot]:
  for split in reversed(values.SPLITS):
    diverged = values.diverged_runs(results)
    lines = plots.mean_lines(rows, values.loss_curves(results, split), diverged)
    if lines:
      caption = (
        f'{BAND} Untested. The y axis is clipped to the values after the first {plots.START:.0%} of steps.'
      )
      if any(line.low is None for line in lines):
        caption += ' A dotted line with a cross is a seed that diverged.'
      yield Plot(
        f'curves_{split}',
        f'{LOSSES[split]} loss',
        caption,
        lambda width, lines=lines, split=split: plots.draw_lines(
          lines, f'{LOSSES[split].lower()} loss', XAxis('step'), width, plots.start_limits(lines)
        ),
      )


def _list_curves_by_cost(results: dict, rows: Sequence[Row]) -> Iterator[Plot]:
  """The validation loss against the compute and the time of training, where arms differ in them."""
  arms = {arm['name']: arm for arm in results['arms']}
  curves = values.mean_curves(results)
  for key, (label, _) in targets.TOKEN_COSTS.items():
    totals = [(row, targets.cost_of_steps(arms[row.name], key, 1.0)) for row in rows if row.name in curves]
    shown = [(row, total) for row, total in totals if total]
    costs = [total for _, total in shown]
    if len(shown) < 2 or max(costs) <= (1 + EQUAL) * min(costs):
      continue
    lines = []
    for row, total in shown:
      steps, losses = [*curves[row.name]], [*curves[row.name].values()]
      lines.append(plots.Line(row, [total * step / steps[-1] for step in steps], losses, losses, losses))
    yield Plot(
      f'curves_{key}',
      f'Validation loss against {label}',
      'Means over seeds, untested. A schedule that ends earlier would reach a loss earlier.',
      lambda width, lines=lines, label=label: plots.draw_lines(
        lines, 'validation loss', XAxis(label), width, plots.start_limits(lines)
      ),
    )


def _list_metrics_by_x(results: dict, rows: Sequence[Row]) -> Iterator[Plot]:
  length = results['study'].get('length')
  for name in values.metric_names(results, by_x=True):
    lines = plots.mean_lines(rows, values.values_by_x(results, name))
    if lines:
      metric, x_name = split_axis(name)
      missing = describe_missing(results, name)
      caption = BAND + f' Not drawn, because not finite or diverged: {missing}.' * bool(missing)
      if len({x for line in lines for x in line.x}) > MAX_COLUMNS:
        caption += ' Untested.'
      yield Plot(
        urllib.parse.quote(name, safe=''),
        to_title(name),
        caption,
        lambda width, lines=lines, metric=metric, x_name=x_name: plots.draw_lines(
          lines,
          metric,
          XAxis(
            x_name,
            2 if x_name == 'length' and min(line.x[0] for line in lines) > 0 else None,
            training_x=length if x_name in ('length', 'position') else None,
          ),
          width,
        ),
      )


def describe_missing(results: dict, name: str) -> str:
  """The runs and values of x at which a metric is not drawn; '' for none."""
  diverged = values.diverged_runs(results)
  missing = {(v['arm'], v['seed']): [] for v in results['values']}
  for v in results['values']:
    run = v['arm'], v['seed']
    if v['metric'] == name and (not values.is_finite(v['value']) or run in diverged):
      missing[run].append(f'{v["x"]:g}')
  return '; '.join(f'{arm}, seed {seed}, at {", ".join(xs)}' for (arm, seed), xs in missing.items() if xs)


def list_costs(results: dict, rows: Sequence[Row]) -> dict[str, tuple[str, dict[str, float]]]:
  """Cost → (axis label, {arm: cost}), for costs that differ by more than EQUAL between the arms that
  finished.
  """
  costs = {
    key: (label, {arm['name']: arm[key] for arm in results['arms'] if arm.get(key) is not None})
    for key, label in COSTS.items()
  }
  for metric in results['study'].get('costs', ()):
    costs[metric] = (
      metric.replace('_', ' '),
      {
        arm: sum(of_arm.values()) / len(of_arm)
        for arm, of_arm in values.scalar_values(results, metric).items()
        if of_arm
      },
    )
  finished = {row.name for row in rows if row.summary}
  different = {}
  for key, (label, of_arm) in costs.items():
    shown = [cost for arm, cost in of_arm.items() if arm in finished]
    if len(shown) > 1 and max(shown) > (1 + EQUAL) * min(shown):
      different[key] = (label, of_arm)
  return different


def split_axis(name: str) -> tuple[str, str]:
  """'loss_at_length' → ('loss', 'length'): the metric and the name of its x."""
  match = re.fullmatch(r'(.+)_(?:at|by)_(.+)', name)
  return (match[1].replace('_', ' '), match[2].replace('_', ' ')) if match else (name.replace('_', ' '), 'x')


def to_title(name: str) -> str:
  """'loss_at_length' → 'Loss at length'."""
  words = name.replace('_', ' ')
  return words[:1].upper() + words[1:]
