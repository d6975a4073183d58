"""The error of a text: that of draws of other texts, and with that of seeds the multi-bootstrap's."""

import numpy as np
import pytest
from scipy import stats

from tfm.studies.statistics.texts import text_error


def as_parts(table):
  return {seed: dict(enumerate(row)) for seed, row in enumerate(table)}


def test_by_hand():
  """Differences 0, 2 and 4 of parts of weight 1, 1 and 2: the mean is 2.5."""
  arm, base = as_parts([[1.0, 3.0, 5.0], [1.0, 5.0, 7.0]]), as_parts([[1.0, 2.0, 2.0], [1.0, 2.0, 2.0]])
  expected = np.sqrt(3 / 2 * (2.5**2 + 0.5**2 + 4 * 1.5**2)) / 4
  assert text_error(arm, base, {0: 1, 1: 1, 2: 2}) == pytest.approx(expected)
  assert text_error(as_parts([[1.0]]), as_parts([[2.0]]), {0: 1}) is None
  assert text_error({0: {0: 1.0, 1: 2.0}}, {1: {0: 1.0, 1: 2.0}}, {0: 1, 1: 1}) is None  # no common seed


def test_only_common_parts_and_seeds_count():
  arm, base = as_parts([[1.0, 3.0, 9.0], [2.0, 2.0, 9.0]]), as_parts([[1.0, 2.0]])
  assert text_error(arm, base, {0: 1, 1: 1, 2: 1}) == text_error(as_parts([[1.0, 3.0]]), base, {0: 1, 1: 1})


def test_with_many_seeds_both_errors_are_the_multi_bootstraps():
  """Sellam et al. 2022: seeds and texts are drawn anew, with replacement, both at once."""
  draw = np.random.default_rng(0)
  seeds, parts = 60, 80
  noise = draw.normal(0, 0.3, seeds)[:, None] + draw.normal(0, 0.5, parts)
  table = 0.1 + noise + draw.normal(0, 0.2, (seeds, parts))
  weights = draw.integers(1, 5, parts)
  means = [
    np.average(table[draw.integers(0, seeds, seeds)][:, chosen].mean(0), weights=weights[chosen])
    for chosen in draw.integers(0, parts, (4000, parts))
  ]
  over_seeds = np.average(table, axis=1, weights=weights).std(ddof=1) / seeds**0.5
  over_text = text_error(as_parts(table), as_parts(np.zeros_like(table)), dict(enumerate(weights)))
  assert np.hypot(over_seeds, over_text) == pytest.approx(np.std(means), rel=0.06)


def test_intervals_over_seeds_and_texts_hold_for_other_texts():
  """Of three seeds and twenty parts: with Student's t of the seeds, at least as often as they say."""
  draw, held = np.random.default_rng(1), []
  for _ in range(1000):
    table = draw.normal(0, 0.1, (3, 1)) + draw.normal(0, 0.5, 20) + draw.normal(0, 0.2, (3, 20))
    over_seeds = table.mean(1).std(ddof=1) / 3**0.5
    over_text = text_error(as_parts(table), as_parts(np.zeros_like(table)), dict.fromkeys(range(20), 1))
    half = stats.t.ppf(0.975, 2) * np.hypot(over_seeds, over_text)
    held.append((abs(table.mean()) <= half, abs(table.mean()) <= stats.t.ppf(0.975, 2) * over_seeds))
  both, seeds_alone = np.mean(held, axis=0)
  assert both >= 0.94 and seeds_alone < 0.9
