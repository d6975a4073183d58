"""The order in which rows of several sources follow one another: by their weights, and without chance.

Of the first n rows, the source with weight w has n w of them to within less than one row, for every n: the
chairman assignment problem, Tijdeman 1980. So it has n w of any n consecutive rows to within less than two,
and to within less than one in a mixture of two sources. No order keeps every window of three or more sources
that closely: of 1/2, 1/3 and 1/6, each second row would be of the first source and each third of the second.
"""

import functools
import heapq
from fractions import Fraction

import numpy as np

from tfm.shapes import Int


DECIMALS = 6  # of a weight; so the order repeats after at most a million rows


@functools.lru_cache(maxsize=8)
def plan_period(weights: tuple[Fraction, ...]) -> tuple[Int[np.ndarray, 'N'], Int[np.ndarray, 'N']]:
  """Returns (source, number) of each row of a period: row i is that row of its source, counted from 0.

  The period N is the least common denominator of the weights. Row j of a source has a first and a last place
  between which the source keeps the bound; of the rows whose first place has come, the one whose last place
  is nearest is next (earliest deadline first, which finds an order if there is one; Tijdeman proves that
  there is).

  Args:
    weights: of the sources; their sum is 1.
  """
  period = int(np.lcm.reduce([weight.denominator for weight in weights]))
  counts = np.array([int(weight * period) for weight in weights])
  # The bound is 1 - 1/d rows.
  d = max(2 * len(counts) - 2, 1)
  source = np.repeat(np.arange(len(counts)), counts)
  number = np.concatenate([np.arange(count) for count in counts])
  first = -(-(number * d + 1) * period // (d * counts[source])) - 1
  last = (number * d + d - 1) * period // (d * counts[source])
  by_first = np.lexsort((source, first))
  rows = zip(last[by_first].tolist(), source[by_first].tolist(), number[by_first].tolist())
  # The number of rows whose first place is at most n, for each n.
  available = np.searchsorted(first[by_first], np.arange(period), side='right')
  order, waiting = [], []
  for count in np.diff(available, prepend=0).tolist():
    for _ in range(count):
      heapq.heappush(waiting, next(rows))
    order.append(heapq.heappop(waiting)[1:])
  sources, numbers = np.array(order, np.int32).T
  return sources, numbers


class Interleaving:
  """The source of each row of an infinite mixture, and its number among the rows of that source.

  Args:
    weights: of the sources; their sum is 1.
  """

  def __init__(self, weights: tuple[Fraction, ...]):
    self._sources, self._numbers = plan_period(weights)
    self._counts = np.bincount(self._sources).tolist()

  def __getitem__(self, index: int) -> tuple[int, int]:
    """Returns (source, number) of a row."""
    period, place = divmod(index, len(self._sources))
    source = int(self._sources[place])
    return source, period * self._counts[source] + int(self._numbers[place])
