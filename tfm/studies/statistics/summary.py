"""Means over seeds with their intervals, and how probabilities and numbers of things are written."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from tfm.errors import importing_extra


with importing_extra('ablation'):
  from scipy import stats


# The level of intervals; a difference is shown where its corrected p is at most ALPHA.
LEVEL = 0.95
ALPHA = round(1 - LEVEL, 10)
# The probability with which a number of seeds is to decide.
POWER = 0.8


@dataclasses.dataclass(frozen=True)
class Spread:
  """A standard deviation over seeds, and the degrees of freedom that it was estimated with."""

  deviation: float
  df: int


@dataclasses.dataclass(frozen=True)
class Summary:
  """One arm over n seeds.

  Attributes:
    deviation: standard deviation, divided by n - 1; None for one seed.
    minimum, maximum: over the seeds.
    interval: of the mean, by Student's t; None if no spread is known.
  """

  n: int
  mean: float
  deviation: float | None
  minimum: float
  maximum: float
  interval: tuple[float, float] | None


def summarize(values: Sequence[float], spread: Spread | None = None) -> Summary:
  """The Summary of one arm's values, with the interval mean ± t(df) · deviation / √n (Student 1908).

  Args:
    spread: that of arms alike, pooled; None: that of these values alone.

  Raises:
    ValueError: without any value.
  """
  if not len(values):
    raise ValueError('no value to summarize; an arm needs at least one finished seed')
  n, mean = len(values), float(np.mean(values))
  deviation = float(np.std(values, ddof=1)) if n > 1 else None
  if spread is None and n > 1:
    spread = Spread(deviation, n - 1)
  interval = None
  if spread is not None:
    half = float(stats.t.ppf((1 + LEVEL) / 2, spread.df)) * spread.deviation / math.sqrt(n)
    interval = mean - half, mean + half
  return Summary(n, mean, deviation, float(np.min(values)), float(np.max(values)), interval)


def pool_spreads(samples: Sequence[Sequence[float]]) -> Spread | None:
  """The standard deviation within samples, pooled over them; None if no sample has two values."""
  df = sum(len(values) - 1 for values in samples)
  if not df:
    return None
  squares = sum(((np.asarray(values, float) - np.mean(values)) ** 2).sum() for values in samples)
  return Spread(math.sqrt(squares / df), df)


def format_p(p: float) -> str:
  """'p = 0.12', 'p = 0.031' or 'p < 0.001'."""
  return f'p = {p:.2f}' if p >= 0.1 else f'p = {p:.3f}' if p >= 0.001 else 'p < 0.001'


def format_count(n: int, noun: str) -> str:
  """'1 seed', '2 seeds'."""
  return f'{n} {noun}' if n == 1 else f'{n} {noun}s'
