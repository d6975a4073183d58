"""The warnings of a report: what may turn its findings over."""

import itertools
import math
from collections.abc import Iterator

import numpy as np

from tfm.studies.learning_rates import list_rates_tried
from tfm.studies.report.ranking import Ranking, Row
from tfm.studies.report.values import arms_ended_early, mean_curves, scalar_values
from tfm.studies.report.wording import format_number, join_names


# A loss falls steeply if it falls by more than these in the last fifth of the steps: part of its size, and
# deviations over seeds.
STEEP, LAST = (0.01, 2.0), 0.8
# The run that chose the rate of an arm was lucky if it is better than all its seeds by more than these: part
# of its size, and deviations over seeds.
LUCKY = 0.02, 4.0
# Above this mean cosine of two tokens before the first step, the layers have made all tokens alike.
ALIKE = 0.9
# Arms begin unequally if these cosines differ by more.
UNEQUAL = 0.3
# Below so many tokens of evaluation text, differences depend on which text it is.
SMALL_TEXT = 1_000_000
# Of so many pairs of curves that cross, those with a base first, the names are given.
MAX_PAIRS = 8


def list_caveats(results: dict, ranking: Ranking) -> list[str]:
  """A sentence on each reason to doubt the ranking."""
  return [
    *_warn_of_rates(results),
    *_warn_of_lucky_rates(results, ranking),
    *_warn_of_initialization(results),
    *_warn_of_steep_curves(results, ranking),
    *_warn_of_crossing_curves(results, ranking),
    *_warn_of_text(results, ranking),
  ]


def _warn_of_rates(results: dict) -> Iterator[str]:
  """Arms whose learning rate is not tuned, or best at an end of the range."""
  tuned = {arm['name']: arm for arm in results['arms'] if arm.get('rate') is not None}
  if not tuned and results['study'].get('learning_rates') == [] and len(results['arms']) > 1:
    yield (
      'No learning rate is tuned: an arm may be ahead because the rate of the config suits it '
      '(learning_rates=…).'
    )
  for end, side in ((min, 'lowest'), (max, 'highest')):
    arms = [
      name
      for name, arm in tuned.items()
      if (tried := [*map(float, list_rates_tried(arm))]) and len(tried) > 1 and arm['rate'] == end(tried)
    ]
    if arms:
      yield (
        f'The best learning rate of {join_names(arms)} is the {side} that was tried; a wider range may be '
        'better (rates_beyond=…).'
      )


def _warn_of_lucky_rates(results: dict, ranking: Ranking) -> Iterator[str]:
  """Arms of which the run that chose the learning rate learned, and no seed does as well by far."""
  within = ranking.findings.analysis.within
  sign = 1 if results['study']['lower_is_better'] else -1
  runs = results['study'].get('runs_per_rate', 1)
  noun = 'run that chose' if runs == 1 else f'mean of the {runs} runs that chose'
  reached = {arm['name']: (arm.get('rates') or {}).get('reached', {}).values() for arm in results['arms']}
  for row in ranking.rows:
    if not (within and reached[row.name] and row.values):
      continue
    chosen, best = (min(of, key=lambda x: sign * x) for of in (reached[row.name], row.values.values()))
    if sign * (best - chosen) > max(LUCKY[0] * abs(chosen), LUCKY[1] * within.deviation):
      yield (
        f'The {noun} the rate of {row.name} reached {format_number(chosen, ranking.places)}, and the best of '
        f'its seeds reaches {format_number(best, ranking.places)}: at this rate it depends on the seed what '
        'the arm learns, and its rank tells of the rate (runs_per_rate=…).'
      )


def _warn_of_initialization(results: dict) -> Iterator[str]:
  """Arms that start with all tokens alike, or more so than others, as the measure initialization finds; and
  those of a study of which it is not known.
  """
  cosines = {
    arm: max(of_seeds.values())
    for arm, of_seeds in scalar_values(results, 'token_cosine_at_start').items()
    if of_seeds
  }
  unknown = [arm for arm, of_arm in scalar_values(results, 'loss').items() if of_arm and arm not in cosines]
  if unknown and 'learning_rates' in results['study']:
    yield (
      f'Whether an arm begins alive is not measured of {join_names(unknown)}: their tokens may be alike, or '
      'their gradients none, before the first step (the measure initialization).'
    )
  if alike := [arm for arm, cosine in cosines.items() if cosine > ALIKE]:
    yield (
      f'Before the first step the tokens of {join_names(alike)} are alike (mean cosine up to '
      f'{format_number(max(cosines[arm] for arm in alike), 2)}): the rank tells of the initialization.'
    )
  others = sorted((arm for arm in cosines if arm not in alike), key=cosines.get)
  if others and cosines[others[-1]] - cosines[others[0]] > UNEQUAL:
    low, high = (f'{arm} (mean cosine {format_number(cosines[arm], 2)})' for arm in (others[0], others[-1]))
    yield (
      f'Before the first step the tokens of {high} are more alike than those of {low}: a part of what sets '
      'the arms apart may be the initialization.'
    )


def _warn_of_steep_curves(results: dict, ranking: Ranking) -> Iterator[str]:
  """Arms whose validation loss still falls steeply, unless they ended where the study meant them to."""
  within = ranking.findings.analysis.within
  noise = within.deviation if within and results['study']['metric'] == 'loss' else 0.0
  falls, ended = {}, arms_ended_early(results)
  for arm, curve in mean_curves(results).items():
    if arm in ended:
      continue
    steps = [*curve]
    end = curve[steps[-1]]
    before = np.interp(steps[0] + LAST * (steps[-1] - steps[0]), steps, [*curve.values()])
    if before - end > max(STEEP[0] * abs(end), STEEP[1] * noise):
      falls[arm] = before - end
  if falls:
    most = max(falls, key=falls.get)
    yield (
      f'The loss of {join_names([*falls])} still falls steeply, in the last fifth of the training by up to '
      f'{format_number(falls[most], 3)} ({most}): a longer training may change the order.'
    )


def _warn_of_crossing_curves(results: dict, ranking: Ranking) -> Iterator[str]:
  """Arms of one base, and the base, whose validation losses cross in the second half of the training.

  Where one of the two ended early, their common steps are not the training.
  """
  ended, curves, within = arms_ended_early(results), mean_curves(results), ranking.findings.analysis.within
  rows = [row for row in ranking.rows if row.compared_with and row.name in curves and row.name not in ended]
  pairs = [pair for pair in itertools.combinations(rows, 2) if pair[0].compared_with == pair[1].compared_with]
  found = []
  for a, b in sorted(pairs, key=lambda pair: not (pair[0].is_base or pair[1].is_base)):
    noise = 0.0
    if within and a.values and b.values:
      noise = 2 * within.deviation * math.hypot(*(1 / math.sqrt(len(row.values)) for row in (a, b)))
    steps = [step for step in curves[a.name] if step in curves[b.name]]
    gaps = np.array([curves[a.name][step] - curves[b.name][step] for step in steps])
    if len(steps) < 2 or abs(gaps[-1]) <= noise:
      continue
    before = [
      step
      for step, gap in zip(steps, gaps)
      if step >= steps[-1] / 2 and abs(gap) > noise and np.sign(gap) != np.sign(gaps[-1])
    ]
    if before:
      found.append(f'{a.name} and {b.name} after step {before[-1]:,} of {steps[-1]:,}')
  if found:
    more = f'; {len(found) - MAX_PAIRS} more pairs' if len(found) > MAX_PAIRS else ''
    yield (
      f'These loss curves cross in the second half of the training: {"; ".join(found[:MAX_PAIRS])}{more}. '
      'Another length of training may show another order.'
    )


def _warn_of_text(results: dict, ranking: Ranking) -> Iterator[str]:
  """Small evaluation texts, and arms whose verdict another text might change."""
  decided = [row for row in ranking.rows if row.verdict in ('better', 'worse', 'same')]
  doubtful = [
    row.name
    for row in decided
    if row.text_interval and is_by_interval(row, ranking) and not is_transferable(row, ranking)
  ]
  if doubtful:
    yield (
      f'{join_names(doubtful)}: the verdict holds for this evaluation text; by the interval for other texts '
      'of its size it is undecided.'
    )
  tokens = [max(of_arm.values()) for of_arm in scalar_values(results, 'tokens').values() if of_arm]
  if decided and tokens and min(tokens) < SMALL_TEXT and not any(row.text_interval for row in ranking.rows):
    metric = results['study']['metric']
    measure = 'parts' if metric == 'loss' else f'parts("{metric}")'
    yield (
      f'Intervals hold for this evaluation text, of {min(tokens):,.0f} tokens; those for other texts of its '
      f'size are wider, by how much the measure {measure} tells.'
    )


def is_by_interval(row: Row, ranking: Ranking) -> bool:
  """Whether the interval of the difference gives the verdict, and not the outcomes of runs."""
  return ranking.criterion.solved_at is None and row.comparison.finding != 'undecided'


def is_transferable(row: Row, ranking: Ranking) -> bool:
  """Whether the interval for other texts gives the same verdict."""
  low, high = row.text_interval
  if row.verdict == 'same':
    return -ranking.criterion.margin < low and high < ranking.criterion.margin
  return low > 0 or high < 0
