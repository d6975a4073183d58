"""The benchmark of a device: all cells, tiny, where few packages are installed; resumption; the report."""

import json
import os
import subprocess
import sys
import time

import jax
import pytest

from tests.paths import ROOT
from tfm.benchmark import measure_device
from tfm.benchmark.device import cells, errors, machine, report
from tfm.commands import cli
from tfm.kernels.chunked import Chunked


# What a borrowed machine may lack: it has jax, flax and optax with what they require, and the packages of
# `make device`.
LACKING = (
  'grain tensorflow_datasets sentencepiece array_record pyarrow zstandard einops matplotlib sklearn PIL'
).split()
RUN = f"""
import importlib.util, sys
from tfm.commands import cli

HIDDEN, find_spec = {{'torch', 'transformers', 'tokamax', *{LACKING!r}}}, importlib.util.find_spec
importlib.util.find_spec = lambda name, *args: name not in HIDDEN and find_spec(name, *args)

class Lacking:
  def find_spec(self, name, path=None, target=None):
    if name.partition('.')[0] in {LACKING!r}:
      raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)

sys.meta_path.insert(0, Lacking())
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.rotated(1)
@pytest.mark.timeout(300)
def test_every_cell_runs_where_only_jax_flax_and_optax_are(tmp_path):
  """Without PyTorch, whose cells have a test among those with oracles."""
  done = subprocess.run(
    [sys.executable, '-c', RUN, 'benchmark', 'device', f'--to={tmp_path}', '--smoke'],
    capture_output=True,
    text=True,
    encoding='utf-8',
    cwd=ROOT,
  )
  assert done.returncode == 0, done.stderr
  lines = (tmp_path / 'results.jsonl').read_text(encoding='utf-8').splitlines()
  results = {entry['key']: entry['found'] for entry in map(json.loads, lines)}
  expected = [cell for cell in cells.list_cells(cells.SMOKE) if not cell.packages]
  assert [*results] == [cell.key for cell in expected]
  for cell in expected:
    found = results[cell.key]
    assert 'error' not in found and all(value > 0 for value in found.values()), (cell, found)
    assert report.HEADLINES[cell.group][0] in found
  text = (tmp_path / 'report.md').read_text(encoding='utf-8')
  assert all(f'## {group[:1].upper()}{group[1:]}' in text for group in report.HEADLINES)
  assert 'A smoke test: the sizes are tiny' in text and [*(tmp_path / 'profile').rglob('*.xplane.pb')]


def test_the_cells_are_many_different_and_in_the_order_of_their_value():
  found = cells.list_cells(cells.FULL)
  assert len({cell.key for cell in found}) == len(found)
  groups = [cell.group for cell in found]
  assert [*dict.fromkeys(groups)] == [*report.HEADLINES] and groups == sorted(groups, key=groups.index)
  assert {cell.function for cell in found} == {cell.function for cell in cells.list_cells(cells.SMOKE)}
  # Every row of a group has the same number of tokens.
  assert {
    cell.arguments['batch'] * cell.arguments['length']
    for cell in found
    if cell.group in ('kernels', 'mixers')
  } == {cells.FULL.attended}


@pytest.fixture
def counted(monkeypatch):
  """The cells that were measured, by a stand-in; the third exceeds its limit."""
  measured = []

  def measure(cell, folder, seconds):
    measured.append(cell.key)
    return dict(error='took longer than 120 s') if len(measured) == 3 else dict(tflops=1.0, gbps=2.0)

  monkeypatch.setattr(measure_device, 'measure_apart', measure)
  monkeypatch.setattr(machine, 'describe_device', lambda: 'gpu of a test')
  return measured


def test_calls_add_up(counted, tmp_path, monkeypatch):
  """An interrupted benchmark goes on where it was; a cell that failed is not tried again."""
  clock = iter(range(0, 10_000, 60))
  monkeypatch.setattr(measure_device.time, 'monotonic', lambda: next(clock))
  command = ['benchmark', 'device', f'--to={tmp_path}', '--only=matrix products']
  assert cli.main([*command, '--minutes=2.5']) == 0
  first = len(counted)
  assert 0 < first < 6
  assert cli.main([*command, '--minutes=60']) == 0
  expected = [cell.key for cell in cells.list_cells(cells.FULL) if cell.group == 'matrix products']
  assert counted == expected
  text = (tmp_path / 'report.md').read_text(encoding='utf-8')
  assert text.count('took longer than 120 s') == 1 and text.count('| 1 |') == len(expected) - 1
  assert (tmp_path / 'report.png').exists()


def test_a_cell_for_which_the_time_was_too_short_is_tried_last(tmp_path, monkeypatch):
  """The first needs more than the three minutes of a call, and keeps the others from theirs once."""
  now, tried = [0.0], []

  def measure(cell, folder, seconds):
    tried.append(cell.key)
    needed = 250 if cell.key == slow.key else 60
    now[0] += min(seconds, needed)
    return dict(unfinished=round(seconds)) if seconds < needed else dict(tflops=1.0)

  found = [cells.Cell('matrix products', 'calibration:matmul', dict(m=m, k=1, n=1), 300) for m in range(4)]
  slow = found[0]
  monkeypatch.setattr(cells, 'list_cells', lambda sizes: found)
  monkeypatch.setattr(measure_device, 'measure_apart', measure)
  monkeypatch.setattr(measure_device.time, 'monotonic', lambda: now[0])
  monkeypatch.setattr(machine, 'describe_device', lambda: 'gpu of a test')
  command = ['benchmark', 'device', f'--to={tmp_path}']
  for minutes, expected in ((3, [0]), (3, [1, 2, 3]), (5, [0])):
    tried.clear()
    assert cli.main([*command, f'--minutes={minutes}']) == 0
    assert tried == [found[i].key for i in expected]
  assert (tmp_path / 'report.md').read_text(encoding='utf-8').count('| 1 |') >= 4


def test_a_report_is_written_of_another_machines_results(counted, tmp_path, monkeypatch):
  """Also of those whose packages are not here; a line that was cut off is measured again."""
  sdpa = next(cell for cell in cells.list_cells(cells.FULL) if cell.function == 'attention_torch:kernel')
  entry = dict(key=sdpa.key, found=dict(both_ms=12.5), machine='gpu elsewhere', clocks={})
  log = tmp_path / 'results.jsonl'
  assert cli.main(['benchmark', 'device', f'--to={tmp_path}', '--report']) == 2
  log.write_text(json.dumps(entry) + '\n' + json.dumps(entry)[:40], encoding='utf-8')
  assert cli.main(['benchmark', 'device', f'--to={tmp_path}', '--report']) == 0
  text = (tmp_path / 'report.md').read_text(encoding='utf-8')
  assert 'gpu elsewhere.' in text and '12.5' in text and not counted
  assert log.read_text(encoding='utf-8') == json.dumps(entry) + '\n'
  log.write_text('not JSON\n' + json.dumps(entry) + '\n', encoding='utf-8')
  assert cli.main(['benchmark', 'device', f'--to={tmp_path}', '--report']) == 2


def test_the_committed_measurements_make_the_committed_report(tmp_path):
  (tmp_path / 'results.jsonl').symlink_to(ROOT / 'docs' / 'results' / 'h200.jsonl')
  assert cli.main(['benchmark', 'device', f'--to={tmp_path}', '--report']) == 0
  text = (tmp_path / 'report.md').read_text(encoding='utf-8')
  assert 'gpu NVIDIA H200' in text and '62,658' in text and (tmp_path / 'report.png').exists()


def test_clocks_are_those_while_a_cell_ran(tmp_path, monkeypatch):
  """A stand-in for nvidia-smi: the median clock, the greatest power, and no line that was cut off."""
  lines = [f'H200, 580.1, 700.00 W, 143771 MiB, {clock} MHz, 3201 MHz, {power} W' for clock, power in RUNNING]
  program = tmp_path / 'nvidia-smi'
  program.write_text('#!/bin/sh\ncat <<END\n' + '\n'.join([*lines, 'H200, 58']) + '\nEND\nexec sleep 60\n')
  program.chmod(0o755)
  monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
  with machine.watch_clocks() as clocks:
    assert not clocks
    time.sleep(0.5)
  assert clocks['clocks.sm'] == '1500 MHz' and clocks['power.draw'] == '690.5 W'
  assert clocks['memory.total'] == '143771 MiB'
  monkeypatch.setenv('PATH', str(tmp_path / 'empty'))
  with machine.watch_clocks() as clocks:
    pass
  assert clocks == {}


RUNNING = (1980, 130.0), (1500, 690.5), (1200, 500.0)


def test_results_of_another_machine_are_not_mixed(counted, tmp_path, capsys):
  entry = dict(key='', found={}, machine='another', clocks={})
  (tmp_path / 'results.jsonl').write_text(json.dumps(entry) + '\n', encoding='utf-8')
  assert cli.main(['benchmark', 'device', f'--to={tmp_path}']) == 2
  assert (
    'holds measurements of another machine (another), and this one is gpu of a test'
    in capsys.readouterr().err
  )


def test_a_process_ends_at_its_limit_or_when_the_time_is_over(tmp_path):
  limited, unlimited = (
    cells.Cell('copies', 'calibration:copy', dict(mib=1), seconds=seconds) for seconds in (0, 60)
  )
  assert measure_device.measure_apart(limited, tmp_path, 0) == dict(error='took longer than 0 s')
  assert measure_device.measure_apart(unlimited, tmp_path, 0) == dict(unfinished=0)


@pytest.mark.parametrize(
  'variants', [('causal', 't5'), pytest.param(cells.VARIANTS, marks=pytest.mark.slow)], ids=len
)
def test_errors_are_those_against_the_specification(variants, monkeypatch):
  """Of bfloat16 a few thousandths; of a kernel whose gradient is wrong as much as that."""
  monkeypatch.setattr(errors, 'VARIANTS', variants)
  shape = dict(length=40, batch=1, heads=2, head_width=16)
  found = errors.kernel('chunked', 'bfloat16', **shape)
  assert set(found) == {'worst', *variants}
  assert 1e-4 < found['worst'] == max(found[name] for name in variants) < 0.02
  right = Chunked.attend
  monkeypatch.setattr(
    Chunked, 'attend', lambda self, q, k, v, inputs: right(self, jax.lax.stop_gradient(q), k, v, inputs)
  )
  monkeypatch.setattr(errors, 'VARIANTS', ('causal',))
  assert errors.kernel('chunked', 'bfloat16', **shape)['causal'] > 0.5
  with pytest.raises(ValueError, match='not on cpu'):
    errors.kernel('cudnn', 'bfloat16', **shape)


def test_an_impossible_cell_reports_a_sentence():
  cell = cells.Cell('copies', 'calibration:copy', dict(mib=-1))
  found = measure_device.one_cell.measure(cell)
  assert [*found] == ['error'] and '\n' not in found['error']
