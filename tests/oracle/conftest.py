"""Measures how far a variant is from a published implementation."""

import json

import numpy as np
import pytest

from tests.oracle import differences


@pytest.fixture
def record_difference(request):
  """A function that fails where ours is further from theirs than twice the recorded power of ten.

  The difference is the largest of any number, divided by the largest of theirs. With --update-golden it is
  recorded instead; run all tests of a variant, and without -n.
  """
  update = request.config.getoption('--update-golden')

  def record(variant, library, ours, theirs):
    ours, theirs = (np.asarray(x, np.float64) for x in (ours, theirs))
    assert ours.shape == theirs.shape
    difference = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    key = variant, library
    differences.measured[key] = max(difference, differences.measured.get(key, 0.0))
    if not update:
      differences.require_recorded(variant, library, difference)

  return record


def pytest_sessionfinish(session):
  if session.config.getoption('--update-golden') and differences.measured:
    if hasattr(session.config, 'workerinput'):
      raise pytest.UsageError('differences are recorded by one process; leave out -n')
    text = json.dumps(differences.merge(differences.recorded()), indent=2) + '\n'
    differences.PATH.write_text(text, encoding='utf-8')
