"""What is shown while a command runs: on a terminal, in a pipe, as JSON, and quietly."""

import json
import pathlib

import pytest

from tests.terminal import terminal
from tfm.data import progress_bar
from tfm.training import progress_line
from tfm.training.progress_line import Progress, current_display, print_status, select_display


ROW = dict(step=10, split='validation', loss=2.4, tokens=512.0)
FULL = Progress(12, 200, 2.345, (10, 2.4), 12_345.0, 0.412, 3 * 2**30, 83.4)
RUN = pathlib.Path('runs/a')


def show_all():
  """Everything that a training shows."""
  print_status('text: 3 documents')
  display = current_display()
  with display.training([RUN], first=0, steps=200):
    display.show_metrics(RUN, ROW | dict(split='train'))
    display.show_metrics(RUN, ROW)
    display.show_progress(FULL)
  display.show_end(RUN, 200, 'finished', ['config.json', 'log.txt'])


def test_a_terminal_shows_a_bar_with_all_that_is_known(monkeypatch):
  with terminal(monkeypatch) as lines:
    with select_display(None):
      show_all()
  lines = lines()
  assert max(map(len, lines)) <= 80
  assert 'text: 3 documents' in lines and 'step 10  validation: loss 2.4, tokens 512' in lines
  bar = next(line for line in lines if line.startswith('step 12/200'))
  assert '━' in bar and '6%' in bar and bar.rstrip().endswith('0:01:23 left') and len(bar) == 80
  below = lines[len(lines) - lines[::-1].index(bar)]  # of the last frame
  assert below.rstrip() == ('loss 2.345  validation 2.400 (step 10)  12.3k tokens/s  MFU 41.2%  3.0 GiB')
  assert 'compiling …' in '\n'.join(lines)
  assert sum('split' in line or 'train:' in line for line in lines) == 0  # the bar has the training loss


def test_a_narrow_terminal_cuts_the_line_below_the_bar(monkeypatch):
  with terminal(monkeypatch, columns=40) as lines:
    with select_display(None):
      show_all()
  cut = [line for line in lines() if line.startswith('loss 2.345')]
  assert cut and all(len(line) <= 40 and line.rstrip().endswith('…') for line in cut)


def test_a_pipe_gets_plain_lines_at_intervals(capsys, monkeypatch):
  clock = [0.0]
  monkeypatch.setattr(progress_line.time, 'perf_counter', lambda: clock[0])
  with select_display(None):
    display = current_display()
    with display.training([RUN], first=0, steps=200):
      for second in range(60):
        clock[0] = float(second)
        display.show_progress(FULL)
      display.show_metrics(RUN, ROW)
    with display.training([RUN / 'seed0', RUN / 'seed1'], first=0, steps=200):
      display.show_metrics(RUN / 'seed1', ROW)
  out, err = capsys.readouterr()
  lines = err.splitlines()
  assert not out and '\x1b' not in err and '\r' not in err
  assert lines[:3] == [f'step 12 of 200  {FULL}  0:01:23 left'] * 3
  assert lines[3:] == [
    'step 10  validation: loss 2.4, tokens 512',
    'step 10  validation of seed1: loss 2.4, tokens 512',
  ]


def test_what_is_not_known_is_left_out():
  assert str(Progress(1, 2, 2.0)) == 'loss 2.000'
  assert str(Progress(1, 2, 2.0, tokens_per_second=0.0)) == 'loss 2.000  0.0k tokens/s'


def test_json_is_one_object_a_line_on_stdout(capsys):
  with select_display('json'):
    show_all()
    list(progress_bar.track(range(3), 'reading'))
  out, err = capsys.readouterr()
  assert not err
  assert [json.loads(line) for line in out.splitlines()] == [
    dict(event='message', text='text: 3 documents'),
    dict(event='metrics', run='runs/a', **ROW | dict(split='train')),
    dict(event='metrics', run='runs/a', **ROW),
    dict(event='end', run='runs/a', step=200, state='finished'),
  ]


@pytest.mark.parametrize('on_terminal', [True, False])
def test_quiet_shows_nothing(capsys, monkeypatch, on_terminal):
  monkeypatch.setattr(progress_bar, 'DELAY', -1.0)
  if on_terminal:
    with terminal(monkeypatch) as lines, select_display('quiet'):
      show_all()
      list(progress_bar.track(range(3), 'reading'))
    assert lines() == ['']
  else:
    with select_display('quiet'):
      show_all()
  assert capsys.readouterr() == ('', '')


def test_a_selection_ends_with_its_block(capsys):
  with select_display('quiet'):
    print_status('unseen')
  print_status('seen')
  assert capsys.readouterr() == ('', 'seen\n')
