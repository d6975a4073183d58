"""What is recorded of the differences from published implementations."""

import pytest

from tests.oracle import differences
from tfm import spec
from tfm.analysis.variant_catalogue import SLOTS
from tfm.config.schema import default_config


@pytest.mark.parametrize('difference, bound', [(0.0, 0.0), (3e-7, 1e-6), (1e-6, 1e-6), (1.1e-6, 1e-5)])
def test_bounds_are_powers_of_ten(difference, bound):
  assert differences.round_up(difference) == bound


def test_a_session_replaces_what_it_measured(monkeypatch):
  monkeypatch.setattr(differences, 'measured', {('norm/b', 'y'): 3e-7, ('norm/a', 'x'): 0.0})
  old = {'norm/b': {'z': 1e-3, 'y': 1e-3}}
  assert differences.merge(old) == {'norm/a': {'x': 0.0}, 'norm/b': {'y': 1e-6, 'z': 1e-3}}
  assert old == {'norm/b': {'z': 1e-3, 'y': 1e-3}}


def test_every_recorded_variant_exists():
  for variant in differences.recorded():
    slot, name = variant.split('/')
    fields = default_config().model
    assert name in (fields if slot == 'model' else spec.variant_names(SLOTS[slot][0])), variant


def test_a_larger_difference_fails(monkeypatch):
  monkeypatch.setattr(differences, 'recorded', lambda: {'norm/a': {'x': 1e-3}})
  differences.require_recorded('norm/a', 'x', 1.5e-3)
  with pytest.raises(AssertionError, match='norm/a is 2.5e-03 from x'):
    differences.require_recorded('norm/a', 'x', 2.5e-3)
  with pytest.raises(AssertionError, match='no recorded difference from y'):
    differences.require_recorded('norm/a', 'y', 0.0)
