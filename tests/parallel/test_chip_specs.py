"""What there is to compute on."""

import os

import pytest

from tfm.parallel import chip_specs


@pytest.mark.skipif(not hasattr(os, 'sched_setaffinity'), reason='this system binds no process to cores')
def test_cores_are_those_that_the_process_may_use():
  before = os.sched_getaffinity(0)
  try:
    os.sched_setaffinity(0, {min(before)})
    assert chip_specs.cpu_core_count() == 1
  finally:
    os.sched_setaffinity(0, before)
  assert chip_specs.cpu_core_count() == len(before)
