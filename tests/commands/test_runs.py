"""`tfm runs` and `tfm watch`, on runs that were trained, stopped, diverged, and are running."""

import contextlib
import io
import json
import shutil
import threading
import time

import pytest

from tests.runs.made_up import write_run
from tests.terminal import terminal
from tfm.commands import cli
from tfm.config.load import to_json
from tfm.runs import summary, watch
from tfm.runs.lock import lock_workdir
from tfm.training.metrics import MetricsLog


@pytest.fixture(scope='module')
def folder(tmp_path_factory, tiny, tiny_run):
  """A folder of runs: one that was trained, and others that only have its files."""
  runs = tmp_path_factory.mktemp('runs')
  shutil.copytree(tiny_run, runs / 'trained')
  rows = [(step, 'train', dict(loss=6.0 - step / 10, step_seconds=0.5)) for step in (1, 2)]
  diverged = [*rows, (3, 'train', dict(diverged='train loss is nan at step 3; that step is not saved'))]
  write_run(runs / 'study/arms/alibi/seed0', tiny(**{'model.position': 'alibi'}), rows)
  write_run(runs / 'study/arms/alibi/seed1', tiny(**{'model.position': 'alibi', 'seed': 1}), diverged)
  write_run(runs / 'other [b]', tiny(**{'training.log_every': 7}), rows)
  (runs / 'imported/checkpoints/0').mkdir(parents=True)
  (runs / 'imported/config.json').write_text(to_json(tiny()))
  (runs / 'notes').mkdir()
  (runs / 'notes/config.json').write_text('{}')
  return runs


def tfm(*words):
  with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
    status = cli.main([*map(str, words)])
  return status, out.getvalue(), err.getvalue()


def test_runs_lists_state_step_loss_and_differences(folder):
  status, out, err = tfm('runs', folder)
  assert status == 0 and not err
  lines = [line.split() for line in out.splitlines() if '/6' in line]
  best = summary.summarize_run(folder / 'trained').best
  assert lines == [
    ['imported', 'imported', '0/6', '–', '–'],
    ['other', '[b]', 'stopped', '2/6', '–', '–'],  # log_every changes no result
    ['study/arms/alibi/seed0', 'stopped', '2/6', '–', '–', "model.position='alibi'"],
    ['study/arms/alibi/seed1', 'diverged', '3/6', '–', '–', "model.position='alibi'", 'seed=1'],
    ['trained', 'finished', '6/6', f'{best[1]:.4g}', str(best[0])],
  ]
  assert best[0] == 6 and 4 < best[1] < 6


def test_runs_as_json(folder):
  status, out, _ = tfm('runs', folder / 'study', '--json')
  rows = [json.loads(line) for line in out.splitlines()]
  assert status == 0 and [row['state'] for row in rows] == ['stopped', 'diverged']
  assert [row['changes'] for row in rows] == [{}, {'seed': 1}]  # both are alibi


def test_a_run_that_a_process_trains_is_running(folder):
  with lock_workdir(folder / 'trained'):
    assert summary.summarize_run(folder / 'trained').state == 'running'
  assert summary.summarize_run(folder / 'trained').state == 'finished'


DAMAGES = {  # file, its content, and what is said of it
  'bad': ('metrics.jsonl', '{"stup": 1}\n', ':1 is not a row'),
  'no split': ('metrics.jsonl', '{"step": 1}\n', ':1 is not a row of metrics (split is missing)'),
  'cut': ('config.json', '{"model": {"layers"', ' cannot be read as the config of a run'),
  'foreign': ('config.json', '{"model_type": "bert"}', ' is not the config of a run'),
  'rule': ('config.json', '{"training": {"steps": 6, "stop_when": 3}}', ' cannot be read as the config'),
}


def test_unreadable_runs_are_named_and_left_out(tmp_path, tiny):
  write_run(tmp_path / 'good', tiny(), [])
  for name, (file, content, _) in DAMAGES.items():
    (write_run(tmp_path / name, tiny(), []) / file).write_text(content)
  for flags in ([], ['--json']):
    status, out, err = tfm('runs', tmp_path, *flags)
    assert status == 0 and out.count('stopped') == 1 and 'good' in out
    assert len(err.splitlines()) == len(DAMAGES)
    for name, (file, _, sentence) in DAMAGES.items():
      assert f'left out: {tmp_path}/{name}/{file}{sentence}' in err


def test_a_file_that_the_system_does_not_read_is_named(tmp_path, tiny):
  path = write_run(tmp_path / 'run', tiny(), []) / 'metrics.jsonl'
  path.unlink()
  path.mkdir()
  status, out, err = tfm('runs', tmp_path)
  assert status == 2 and not out and err.startswith(f'left out: {path} cannot be used: Is a directory')
  assert err.endswith(f'tfm runs: no run in {tmp_path} can be read\n')


@pytest.mark.parametrize(
  'words, sentence',
  [
    (['runs', 'nowhere'], 'nowhere is no folder'),
    (['runs', 'empty'], 'empty holds no run; tfm train --workdir=empty/NAME makes one'),
    (['watch', 'empty'], 'empty holds no run; tfm runs DIR lists'),
  ],
)
def test_folders_without_runs_are_rejected(tmp_path, monkeypatch, words, sentence):
  (tmp_path / 'empty').mkdir()
  monkeypatch.chdir(tmp_path)
  status, out, err = tfm(*words)
  assert status == 2 and not out and sentence in err and len(err.splitlines()) == 1


def test_watch_says_how_a_run_ended(folder):
  status, out, err = tfm('watch', folder / 'trained')
  assert status == 0 and not out
  assert err.startswith(f'{folder}/trained: finished at step 6 of 6, best validation loss ')
  diverged = folder / 'study/arms/alibi/seed1'
  reason = 'train loss is nan at step 3; that step is not saved'
  assert tfm('watch', diverged)[2] == f'{diverged}: diverged at step 3 of 6; {reason}\n'


@contextlib.contextmanager
def running(workdir, *rows):
  """Another thread that trains a run: it holds the lock and, when told, writes rows of metrics."""
  go = threading.Event()

  def work():
    with lock_workdir(workdir):
      started.set()
      go.wait()
      time.sleep(3 * watch.PERIOD)
      log = MetricsLog(workdir, 2)  # which writes the file anew, as a run that resumes does
      time.sleep(3 * watch.PERIOD)
      for step, split, values in rows:
        log.write(step, split, values)
        time.sleep(3 * watch.PERIOD)
      log.close()

  started, thread = threading.Event(), threading.Thread(target=work)
  thread.start()
  started.wait()
  go.set()
  yield
  thread.join()


NEW = (
  (3, 'train', dict(loss=5.5, tokens_per_second=2e3, memory_bytes=2**31, step_seconds=0.5)),
  (4, 'validation', dict(loss=5.25)),
  (4, 'train', dict(loss=5.0, tokens_per_second=2e3, step_seconds=0.5, mfu=0.25)),
)


@pytest.mark.slow
def test_watch_follows_a_run_on_a_terminal(tmp_path, tiny, monkeypatch):
  monkeypatch.setattr(watch, 'PERIOD', 0.2)  # each row stays for longer than the bar waits to be drawn
  rows = [(step, 'train', dict(loss=6.0, step_seconds=0.5)) for step in (1, 2)]
  workdir = write_run(tmp_path / 'run', tiny(), rows)
  with running(workdir, *NEW), terminal(monkeypatch) as lines:
    assert cli.main(['watch', str(workdir)]) == 0
  text = '\n'.join(lines())
  assert 'step 2/6' in text and 'step 3/6' in text and 'step 4/6' in text
  assert '0:00:01 left' in text and 'step 4  validation: loss 5.25' in text
  assert 'loss 5.500  2.0k tokens/s  2.0 GiB' in text
  assert 'loss 5.000  validation 5.250 (step 4)  2.0k tokens/s  MFU 25.0%' in text
  assert f'{workdir}: stopped at step 4 of 6, best validation loss 5.25 at step 4' in text


def test_watch_prints_the_rows_that_are_new_as_json(tmp_path, tiny, monkeypatch):
  monkeypatch.setattr(watch, 'PERIOD', 0.05)
  workdir = write_run(tmp_path / 'run', tiny(), [(1, 'train', dict(loss=6.0)), (2, 'train', dict(loss=6.0))])
  with running(workdir, *NEW):
    status, out, err = tfm('watch', workdir, '--json')
  events = [json.loads(line) for line in out.splitlines()]
  assert status == 0 and not err
  assert [(event['step'], event['split']) for event in events if event['event'] == 'metrics'] == [
    (step, split) for step, split, _ in NEW
  ]
