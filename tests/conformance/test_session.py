"""Which slow tests run on which day, and what is skipped when the time is over."""

import pathlib
import subprocess
import sys

import pytest

from tfm.conformance import session


class Item:
  def __init__(self, *markers, path='test_a.py'):
    self.path, self.markers = pathlib.Path(path), {marker.name: marker for marker in markers}

  def get_closest_marker(self, name):
    return self.markers.get(name)

  def add_marker(self, name):
    self.markers[name] = name


def days_of_running(*markers, path='test_a.py'):
  """For each of five tests of a file the days of six on which it runs."""

  def which_run(day):
    items = [Item(*(getattr(pytest.mark, name).mark for name in markers), path=path) for _ in range(5)]
    session.rotate_tests(items, day)
    return ['exhaustive' not in item.markers for item in items]

  return [
    [day for day, runs_then in enumerate(of_test) if runs_then]
    for of_test in zip(*map(which_run, range(6)), strict=True)
  ]


@pytest.mark.parametrize('path', ['test_a.py', 'test_b.py', 'test_c.py'])
def test_a_slow_test_runs_every_third_day_and_a_third_of_a_file_each_day(path):
  days = days_of_running('slow', path=path)
  assert {tuple(of_test) for of_test in days} == {(0, 3), (1, 4), (2, 5)}
  assert days[0] == days[3] != days[1]


@pytest.mark.parametrize('markers', [(), ('slow', 'sampled')])
def test_others_run_every_day(markers):
  assert days_of_running(*markers) == [[*range(6)]] * 5


def test_what_has_not_begun_in_time_is_skipped_and_counted(root):
  command = '-m pytest -r s -p no:cacheprovider --minutes=1e-9 tests/test_version.py'
  done = subprocess.run([sys.executable, *command.split()], cwd=root, capture_output=True, encoding='utf-8')
  assert 'passed' not in done.stdout
  assert '1e-09 minutes were over' in done.stdout
