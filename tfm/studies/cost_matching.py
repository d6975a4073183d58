"""Matching: changes one field of an arm until the arm has as much of a quantity as the base."""

from collections.abc import Callable


# The quantities that can be matched, and their descriptions.
QUANTITIES = {
  'parameters': 'parameters',
  'flops': 'FLOPs of training',
  'tokens': 'tokens of training',
  'time': 'seconds of training',
}
TOLERANCE = 0.02
EQUAL = 1e-3  # a relative difference below this needs no matching


def solve_match(
  target: float, quantity: Callable[[int], float], start: int, multiple: int
) -> tuple[int, float]:
  """The multiple of `multiple` whose quantity is nearest to the target, and that quantity.

  The quantity must increase with the value; it is evaluated at about 2 log₂(result) values.

  Args:
    start: the first value of the search.

  Raises:
    ValueError: if no value comes within 2 % of the target, with the nearest quantities on both sides, or if
      the quantity does not grow with the value.
  """
  computed = {}

  def at(n):
    if n not in computed:
      computed[n] = quantity(n * multiple)
    return computed[n]

  high = max(1, start // multiple)
  while at(high) < target:
    if at(2 * high) <= at(high):
      raise ValueError(
        f'{high * multiple} and {2 * high * multiple} both give {format_quantity(at(high))}, so it does not '
        'depend on this field'
      )
    high *= 2
  low = 0  # below every value; `high` reaches the target
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (middle, high) if at(middle) < target else (low, middle)
  nearest = [n for n in (low, high) if n]
  best = min(nearest, key=lambda n: abs(at(n) - target))
  if abs(at(best) - target) > TOLERANCE * target:
    results = ' and '.join(f'{n * multiple} gives {format_quantity(at(n))}' for n in nearest)
    raise ValueError(f'{results}; the target is {format_quantity(target)} within {TOLERANCE:.0%}')
  return best * multiple, at(best)


def format_quantity(quantity: float) -> str:
  """Integers with thousands separators from 1,000 on, else four significant digits."""
  return f'{quantity:,.0f}' if quantity >= 1000 else f'{quantity:.4g}'
