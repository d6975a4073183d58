"""The order of the rows of a mixture: every source has its weight, at once and everywhere."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.data.interleaving import Interleaving


COUNTS = st.lists(st.integers(1, 40), min_size=1, max_size=6)


def deviations(sources, weights):
  """Rows of each source among the first 0, 1, … rows, beyond its weight: [rows + 1, sources], exact."""
  period = sum(weights)
  rows = np.asarray(sources)[:, None] == np.arange(len(weights))
  beyond = np.cumsum(rows * period - np.array(weights), 0)
  return np.concatenate([np.zeros((1, len(weights)), int), beyond]) / period


def order(counts, rows):
  interleaving = Interleaving(tuple(Fraction(count, sum(counts)) for count in counts))
  return [interleaving[i] for i in range(rows)]


@given(COUNTS)
def test_every_prefix_and_window_holds_the_weights(counts):
  found = deviations([source for source, _ in order(counts, 2 * sum(counts))], counts)
  assert (abs(found) < 1).all()
  # A window is the difference of two prefixes.
  assert (np.ptp(found, axis=0) < (1 if len(counts) <= 2 else 2)).all()
  assert (abs(found) <= max(1 - 1 / max(2 * len(counts) - 2, 1), 0) + 1e-12).all()  # Tijdeman's bound


@given(COUNTS, st.integers(0, 10**12))
def test_the_rows_of_a_source_are_numbered_in_order(counts, first):
  interleaving = Interleaving(tuple(Fraction(count, sum(counts)) for count in counts))
  rows = [interleaving[i] for i in range(first, first + 3 * sum(counts))]
  for source, count in enumerate(counts):
    numbers = [number for at, number in rows if at == source]
    assert numbers == [*range(numbers[0], numbers[0] + 3 * count)]
    assert abs(numbers[0] - first * Fraction(count, sum(counts))) < 1


def test_orders_stay_the_same():
  """A run goes on in the order in which it began, whatever version of the program runs it."""
  for counts, expected in (
    ([1], 'aaaaaa'),
    ([7, 3], 'abaaabaaba' * 2),
    ([3, 2, 1], 'abacab' * 2),
    ([6, 1, 1, 1, 1], 'aabacaadea' * 2),
  ):
    assert ''.join('abcde'[source] for source, _ in order(counts, len(expected))) == expected


def test_three_sources_cannot_be_within_one_row_in_every_window():
  """Why the bound for windows is less than two rows, and not less than one."""
  weights = 3, 2, 1

  def extensions(rows):
    for source in range(3):
      found = deviations([*rows, source], weights)
      if (abs(found[-1] - found) < 1).all():
        yield (*rows, source)

  orders = {()}
  for _ in range(12):
    orders = set(itertools.chain.from_iterable(map(extensions, orders)))
  assert not orders


@pytest.mark.slow
def test_weights_of_many_decimals():
  weights = Fraction('0.333333'), Fraction('0.333333'), Fraction('0.333334')
  interleaving = Interleaving(weights)
  rows = [interleaving[i] for i in (999_999, 1_000_000, 3_000_001)]
  assert rows[1] == (interleaving[0][0], 333_333 + (interleaving[0][0] == 2))
  assert rows[0][1] in (333_332, 333_333) and rows[2][0] == interleaving[1][0]
