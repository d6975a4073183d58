"""What makes a comparison fair: an arm is changed until it has as much of something as the base."""

from collections.abc import Callable


# What may be held equal, in words.
QUANTITIES = {
  'parameters': 'parameters',
  'flops': 'FLOPs of training',
  'tokens': 'tokens of training',
  'time': 'seconds of training',
}
TOLERANCE = 0.02
EQUAL = 1e-3  # what is so near needs no matching


def match(target: float, quantity: Callable[[int], float], start: int, multiple: int) -> tuple[int, float]:
  """The multiple of `multiple` whose quantity is nearest to the target, and that quantity.

  The quantity must grow with the value; it is asked for about 2 log₂ of the answer values.

  Args:
    start: a value to begin with.

  Raises:
    ValueError: if none comes within 2 % of the target, with the nearest from both sides.
  """
  asked = {}

  def at(n):
    if n not in asked:
      asked[n] = quantity(n * multiple)
    return asked[n]

  high = max(1, start // multiple)
  while at(high) < target:
    high *= 2
  low = 0  # below every value; `high` reaches the target
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (middle, high) if at(middle) < target else (low, middle)
  near = [n for n in (low, high) if n]
  best = min(near, key=lambda n: abs(at(n) - target))
  if abs(at(best) - target) > TOLERANCE * target:
    found = ' and '.join(f'{n * multiple} gives {amount(at(n))}' for n in near)
    raise ValueError(f'{found}, and {amount(target)} is asked for within {TOLERANCE:.0%}')
  return best * multiple, at(best)


def amount(quantity: float) -> str:
  """Of anything: parameters are many, and seconds few."""
  return f'{quantity:,.0f}' if quantity >= 1000 else f'{quantity:.4g}'
