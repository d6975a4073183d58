"""Every second is counted by what it was spent on; what was done beyond the last checkpoint is lost."""

import json

import jax
import jax.numpy as jnp
import pytest

from tfm.training import goodput as goodputs
from tfm.training import reporters
from tfm.training.goodput import Goodput


@pytest.fixture
def clock(monkeypatch):
  """Seconds, to be added to."""
  now = [100.0]
  monkeypatch.setattr(goodputs.time, 'perf_counter', lambda: now[0])
  return now


def spend(goodput, clock, kind, seconds):
  with goodput.measure(kind):
    clock[0] += seconds


def test_every_second_is_of_one_kind(clock):
  goodput = Goodput()
  clock[0] += 5
  with goodput.measure_training():
    clock[0] += 10
    with goodput.measure('evaluating'):
      clock[0] += 3
      with goodput.measure('saving'):
        clock[0] += 2
    items = goodput.measure_waiting(iter('ab'))
    assert next(items) == 'a'
    clock[0] += 5
    assert list(items) == ['b']
  seconds = goodput.seconds
  assert seconds == dict(dict.fromkeys(goodputs.KINDS, 0), starting=5, productive=15, evaluating=3, saving=2)
  assert goodput.shares()['productive'] == pytest.approx(15 / 25)
  assert (
    str(goodput) == 'goodput: of 25 seconds productive 60.0%, starting 20.0%, saving 8.0%, evaluating 12.0%'
  )


def test_waiting_is_for_the_next_item(clock):
  def slow():
    clock[0] += 4
    yield 1

  goodput = Goodput()
  assert list(goodput.measure_waiting(slow())) == [1] and goodput.seconds['waiting'] == 4


@pytest.mark.parametrize(
  'others', [[], [[1.0, 0.5, 0, 0], [3.0, 0.25, 7, 0]]], ids=['alone', 'three processes']
)
def test_a_step_takes_as_long_as_its_slowest_process(clock, monkeypatch, others):
  gathered = [json.dumps(row).encode() for row in others]
  monkeypatch.setattr(reporters.processes, 'gather_bytes', lambda own: [own, *gathered])
  goodput = Goodput()
  report = reporters.Report([], None, goodput, 0, 10, [])
  with goodput.measure_training():
    clock[0] += 8
    spend(goodput, clock, 'waiting', 6)
  pace = report._pace(4)
  assert pace.pop('goodput') == pytest.approx(8 / 14)
  assert (pace.pop('step_seconds'), pace.pop('data_seconds')) == ((3.0 if others else 2.0), 1.5)
  several = dict(step_seconds_fastest=1.0, data_seconds_fastest=0.25, data_slowest_process=0)
  assert pace == (several if others else {})


def test_a_step_that_compiles_is_no_productive_one(clock):
  double = jax.jit(lambda x: 2 * x + 17)
  goodput = Goodput()
  for shape, kind in (((3,), 'compiling'), ((3,), 'productive'), ((4,), 'compiling')):
    x = jnp.zeros(shape)
    before = dict(goodput.seconds)
    with goodput.measure_training(), goodput.measure_step():
      double(x)
      clock[0] += 7
    assert goodput.seconds == before | {kind: before[kind] + 7}


@pytest.mark.parametrize('last, lost', [(20, 11), (10, 21), (0, 26)])
def test_the_resumed_run_reports_what_a_kill_cost(clock, tmp_path, last, lost):
  goodput = Goodput([tmp_path], 0)
  clock[0] += 5
  for step, seconds in ((10, 0), (20, 10)):
    spend(goodput, clock, 'productive', seconds)
    goodput.record_save(step)
  spend(goodput, clock, 'productive', 11)
  goodput.write()
  clock[0] += 1000  # killed: not written, and nothing until the next one begins
  again = Goodput([tmp_path], last)
  assert again.seconds['lost'] == lost and sum(again.seconds.values()) == 26
  spend(again, clock, 'productive', 4)
  again.record_save(last + 10)
  again.record_end()
  third = Goodput([tmp_path], last + 10)
  assert third.seconds['lost'] == lost and sum(third.seconds.values()) == 30


def test_the_last_save_is_reported(clock):
  goodput = Goodput()
  for seconds in (3, 5):
    spend(goodput, clock, 'saving', seconds)
    spend(goodput, clock, 'productive', 100)
    goodput.record_save(seconds)
    assert goodput.save_seconds == dict(marks=seconds, near=0)
  spend(goodput, clock, 'saving', 1)
  goodput.record_save(7, 'near')
  assert goodput.save_seconds == dict(marks=5, near=1)


def test_of_many_near_saves_the_last_that_lasts_is_remembered(clock, tmp_path):
  goodput = Goodput([tmp_path], 0)
  for step in range(40):
    spend(goodput, clock, 'productive', 1)
    goodput.record_save(step, 'near' if step else 'marks')
  assert Goodput([tmp_path], 39).seconds['lost'] == 0
  assert Goodput([tmp_path], 0).seconds['lost'] == 39


def test_a_run_that_ended_lost_nothing(clock, tmp_path):
  goodput = Goodput([tmp_path], 0)
  goodput.record_save(10)
  spend(goodput, clock, 'saving', 3)
  goodput.record_end()
  assert Goodput([tmp_path], 10).seconds['lost'] == 0
  assert json.loads((tmp_path / goodputs.FILE).read_text())['seconds']['saving'] == 3


@pytest.mark.parametrize(
  'content',
  [
    '',
    '{"seconds": {"producti',
    '[]',
    '{}',
    '{"seconds": {"productive": "x"}}',
    '{"seconds": {}, "near": {"a": {}}}',
  ],
)
def test_what_cannot_be_read_stops_no_run(clock, tmp_path, capsys, content):
  path = tmp_path / goodputs.FILE
  path.write_text(content)
  goodput = Goodput([tmp_path], 10)
  assert f'{path} cannot be read (' in capsys.readouterr().err
  assert sum(goodput.seconds.values()) == 0
  spend(goodput, clock, 'productive', 4)
  goodput.record_save(20)
  assert Goodput([tmp_path], 20).seconds['productive'] == 4
