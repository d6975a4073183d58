"""How a report writes numbers, names and seeds."""

import math
from collections.abc import Sequence

from tfm.studies.statistics.summary import Summary


def decimals_for(summaries: Sequence[Summary]) -> int:
  """As `decimals`, for any metric; without deviations, from the spread of the means, or from their size."""
  deviations = sorted(s.deviation for s in summaries if s.deviation)
  means = [s.mean for s in summaries]
  scale = (
    deviations[len(deviations) // 2]
    if deviations
    else (max(means) - min(means)) / 10 or max(map(abs, means)) / 100 or 1
  )
  return min(max(1 - math.floor(math.log10(scale)), 0), 6)


def format_number(value: float, places: int, sign: bool = False) -> str:
  """'−1,234.5': with a true minus sign and thousands separators; with `sign` also a plus sign."""
  return f'{value:{"+" * sign},.{places}f}'.replace('-', '−')


def join_names(names: Sequence[str]) -> str:
  """'a, b and c'; of more than eight names the first six and the number of the others."""
  if len(names) > 8:
    names = [*names[:6], f'{len(names) - 6} more']
  return ' and '.join(filter(None, (', '.join(names[:-1]), *names[-1:])))


def format_seeds(numbers: Sequence[int]) -> str:
  """'seed 1', 'seeds 1, 2'."""
  return f'seed{"s" * (len(numbers) > 1)} {", ".join(map(str, numbers))}'


def first_line(error: str) -> str:
  """The first line of an error's text."""
  return error.strip().splitlines()[0] if error.strip() else 'no message'
