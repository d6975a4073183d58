"""`tfm train`: what it shows, runs that are extended, and runs that continue others."""

import contextlib
import io
import json
import re

import jax
import numpy as np
import pytest

from tests.terminal import terminal
from tfm.commands import cli
from tfm.config.load import to_json
from tfm.runs import load
from tfm.training.metrics import read


LONGER = {'optimizer.schedule': 'wsd(0.5)', 'training.steps': 8}  # decays after step 4


@pytest.fixture(scope='module')
def folder(tmp_path_factory, tiny):
  """A folder with the config of a tiny run."""
  path = tmp_path_factory.mktemp('train')
  config = tiny(**{'optimizer.schedule': 'constant', 'training.steps': 4, 'training.evaluate_every': 2})
  (path / 'config.json').write_text(to_json(config))
  return path


@pytest.fixture(scope='module')
def train(folder):
  """A function that trains the config, with other fields, in folder/NAME, and returns the exit status and
  what was printed.
  """

  def train(name, *words, fields={}, redirect_stderr=contextlib.redirect_stderr):
    words = [*words, *(f'--config.{path}={value}' for path, value in fields.items())]
    with contextlib.redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
      status = cli.main(['train', f'--config={folder}/config.json', f'--workdir={folder}/{name}', *words])
    return status, out.getvalue(), err.getvalue()

  return train


@pytest.fixture(scope='module')
def shown(train):
  """The lines that a terminal got while folder/run was trained."""
  with pytest.MonkeyPatch.context() as monkeypatch, terminal(monkeypatch) as lines:
    status, out, _ = train('run', redirect_stderr=contextlib.nullcontext)
  assert status == 0 and not out
  return lines()


@pytest.fixture(scope='module')
def printed(shown, train):
  """What --json printed while folder/run was extended, with event files."""
  return train('run', '--json', fields=LONGER | {'training.sinks': 'tensorboard'})


def test_a_terminal_gets_a_bar(shown):
  bars = [line for line in shown if line.startswith('step ') and '━' in line]
  assert bars and all(len(line) <= 80 for line in bars) and 'step 4/4' in bars[-1] and '100%' in bars[-1]
  below = shown[len(shown) - shown[::-1].index(bars[-1])]
  assert all(word in below for word in ('loss ', 'validation ', '(step 4)', 'k tokens/s', 'GiB'))
  assert any(line.startswith('step 4  validation: ') for line in shown)


def test_the_hash_of_the_data_is_shown_once_with_their_sizes(folder, shown):
  assert ' '.join(shown).count('content hash') == 1
  log = (folder / 'run' / 'log.txt').read_text()
  assert re.search(r'content hash [0-9a-f]{32}: train \d+ documents, [\d,]+ bytes; validation', log)


def test_the_chosen_kernel_is_one_short_line_and_the_reasons_are_in_the_log(folder, shown):
  lines = [line for line in shown if 'kernel' in line and 'auto chose' in line]
  log = (folder / 'run' / 'log.txt').read_text()
  assert len(lines) <= 1  # the console has it once per process
  assert log.count('kernel: auto chose dense on cpu, not chunked: ') == 1
  assert 'kernels before dense: ring: ' in log and 'splash: it runs on tpu' in log


def test_json_lines_have_the_metrics_of_an_extended_run(folder, printed):
  status, out, err = printed
  assert status == 0 and not err
  events = [json.loads(line) for line in out.splitlines()]
  run = str(folder / 'run')
  assert {'event': 'message', 'text': 'resuming from step 4'} in [
    dict(event, text=event['text'].splitlines()[-1]) for event in events if event['event'] == 'message'
  ]
  rows = [row for row in read(folder / 'run' / 'metrics.jsonl') if row['step'] > 4]
  metrics = [event for event in events if event['event'] == 'metrics']
  assert metrics == [dict(row, event='metrics', run=run) for row in rows]
  assert [row['step'] for row in rows if row['split'] == 'train'] == [5, 6, 7, 8]
  assert events[-1] == dict(event='end', run=run, step=8, state='finished')
  assert rows[0]['memory_bytes'] > 2**20


def test_event_files_are_written_only_where_they_are_named(folder, printed, train):
  pytest.importorskip('tensorboardX', reason="tensorboardX is not installed; pip install -e '.[tensorboard]'")
  files = list((folder / 'run').glob('events.out.tfevents.*'))
  assert len(files) == 1 and files[0].name.endswith('.4')  # of the second process, which started at step 4


def test_a_finished_run_says_nothing_if_quiet(printed, train):
  assert train('run', '--quiet', fields=LONGER) == (0, '', '')


@pytest.mark.parametrize(
  'fields, sentence',
  [
    (LONGER | {'training.steps': 16}, 'training.steps: 8 → 16'),  # it has decayed
    (LONGER | {'optimizer.learning_rate': 0.5}, 'optimizer.learning_rate: 0.001 → 0.5'),
  ],
)
def test_other_learning_rates_need_a_new_run(folder, printed, train, fields, sentence):
  status, out, err = train('run', '--quiet', fields=fields)
  assert status == 2 and not out and sentence in err
  assert "its 8 steps had the learning rates of the schedule 'wsd(0.5)' over 8 steps" in err
  assert f'add --config.init_from={folder}/run to start a new run from its parameters' in err


@pytest.mark.slow
def test_an_extended_run_is_the_run_that_was_longer_from_the_start(folder, printed, train):
  assert train('straight', '--quiet', fields=LONGER)[0] == 0
  runs = [load.load(folder / name) for name in ('run', 'straight')]
  jax.tree.map(np.testing.assert_array_equal, *(run.params for run in runs))


@pytest.mark.slow
def test_a_run_says_which_run_and_step_it_continues(folder, printed, train):
  fields = {'init_from': folder / 'run', 'optimizer.learning_rate': 0.01, 'training.steps': 2}
  status, _, err = train('tuned', fields=fields)
  sentence = f'continues {folder}/run: starts from its parameters of step 8'
  assert status == 0 and sentence in err and sentence in (folder / 'tuned' / 'log.txt').read_text()
  origin = dict(workdir=str(folder / 'run'), step=8)
  assert load.checkpoint_metadata(folder / 'tuned')['init_from'] == origin
  assert train('tuned', '--quiet', fields=fields | {'training.steps': 4})[0] == 0  # a constant schedule
  assert load.checkpoint_metadata(folder / 'tuned')['init_from'] == origin
