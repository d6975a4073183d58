"""Matching finds the nearest value with few evaluations, and rejects targets out of reach."""

import math

import pytest

from tfm.studies.cost_matching import TOLERANCE, solve_match


@pytest.mark.parametrize('multiple', [1, 4, 8])
@pytest.mark.parametrize('target', [1_000, 12_345, 1_000_000])
@pytest.mark.parametrize('start', [1, 64, 100_000])
def test_the_nearest_value_is_returned(target, start, multiple):
  calls = []

  def quantity(value):
    calls.append(value)
    return 20 * value + 7 * math.sqrt(value)  # grows, unevenly

  best = min(range(multiple, 2 * target, multiple), key=lambda v: abs(20 * v + 7 * math.sqrt(v) - target))
  if abs(quantity(best) - target) <= TOLERANCE * target:
    calls.clear()
    value, reached = solve_match(target, quantity, start, multiple)
    assert value == best and reached == quantity(best)
    assert len(calls) <= 3 + 2 * math.log2(max(start, 4 * best)) and len(calls) - 1 == len({*calls})
  else:
    with pytest.raises(ValueError, match=f'the target is {target:,} within 2%'):
      solve_match(target, quantity, start, multiple)


def test_too_coarse_multiples_are_rejected_with_the_nearest():
  with pytest.raises(ValueError, match='^8 gives 800 and 16 gives 1,600; the target is 1,200 within 2%$'):
    solve_match(1200, lambda value: 100 * value, 64, 8)
  with pytest.raises(
    ValueError, match='^17 gives 0.068 and 18 gives 0.072; the target is 0.07001 within 2%$'
  ):
    solve_match(0.070011, lambda value: 0.004 * value, 4, 1)
  with pytest.raises(ValueError, match='^8 gives 800; the target is 90'):
    solve_match(90, lambda value: 100 * value, 64, 8)


def test_a_field_that_the_quantity_does_not_depend_on_is_rejected():
  with pytest.raises(ValueError, match='^8 and 16 both give 100, so it does not depend on this field$'):
    solve_match(200, lambda value: 100, 8, 8)
