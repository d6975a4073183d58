"""Metrics in the programs that show them, without a network: each is read back by its own reader."""

import contextlib
import importlib
import json
import pathlib
import subprocess
import sys
import time

import pytest

import tfm.training.sinks
from tfm import spec
from tfm.errors import MissingExtra
from tfm.training.metrics import MetricsLog, read
from tfm.training.sinks.protocol import LoggedRun, Sink, Writer


CONFIG = {'model.width': 32, 'training.sinks': (), 'init_from': '', 'data.source': "text('a.txt')"}
# Steps 1 to 3, and, after a kill and a checkpoint at step 2, steps 3 and 4.
FIRST, RESUMED = range(1, 4), range(3, 5)


def write(sink, workdirs, steps, factor=1.0):
  """Writes steps of several runs, which are open at the same time, as those of an ensemble are."""
  with contextlib.ExitStack() as stack:
    writers = [
      stack.enter_context(contextlib.closing(sink.open(LoggedRun(workdir, CONFIG, steps[0] - 1))))
      for workdir in workdirs
    ]
    for step in steps:
      for run, writer in enumerate(writers):
        writer.write(step, {'train/loss': factor * (run + 1) / step, 'train/learning_rate': 0.5})


@pytest.fixture
def workdirs(tmp_path):
  folders = [tmp_path / 'runs' / name for name in 'ab']
  for folder in folders:
    folder.mkdir(parents=True)
  return folders


def build(text):
  """A sink, or a skip if its package is absent."""
  sink = spec.build(text, tfm.training.sinks, Sink)
  try:
    sink.import_package()
  except MissingExtra as error:
    pytest.skip(str(error))
  return sink


def expected(run):
  return {step: (run + 1) / step for step in range(1, 5)}


def test_tensorboard(workdirs):
  sink = build('tensorboard')
  write(sink, workdirs, FIRST)
  write(sink, workdirs, RESUMED)
  for run, workdir in enumerate(workdirs):
    first, second = map(read_events, sorted(workdir.glob('events.out.tfevents.*')))
    assert first['train/loss'] == pytest.approx({step: (run + 1) / step for step in FIRST})
    assert second['train/loss'] == pytest.approx({step: (run + 1) / step for step in RESUMED})
    assert second['train/learning_rate'] == {step: 0.5 for step in RESUMED}
    assert 'purged from' not in first and second['purged from'] == {3: 0}


def read_events(path):
  """Name → step → value of an event file, and the step from which it replaces earlier ones."""
  from tensorboardX.proto.event_pb2 import Event, SessionLog

  content, found = path.read_bytes(), {}
  while content:
    # TFRecord: the length, its checksum, the record, its checksum.
    length = int.from_bytes(content[:8], 'little')
    event = Event.FromString(content[12 : 12 + length])
    content = content[16 + length :]
    for value in event.summary.value:
      found.setdefault(value.tag, {})[event.step] = value.simple_value
    if event.session_log.status == SessionLog.START:
      found['purged from'] = {event.step: 0}
  return found


@pytest.mark.slow  # make sinks installs the package
def test_wandb_offline(workdirs):
  sink = build("wandb(project='plays', mode='offline')")
  write(sink, workdirs, FIRST)
  write(sink, workdirs, RESUMED)
  for run, workdir in enumerate(workdirs):
    files, deadline = [], time.monotonic() + 30
    while len(files) < 2 or not all('exit' in dict(read_wandb(path)) for path in files):
      assert time.monotonic() < deadline, files  # another process writes them
      files = sorted((workdir / 'wandb').glob('offline-run-*/*.wandb'))
    assert {path.name for path in files} == {f'run-{(workdir / "run_id").read_text().strip()}.wandb'}
    records = [record for path in files for record in read_wandb(path)]
    histories = {row['step']: row['train/loss'] for kind, row in records if kind == 'history'}
    configs = [values for kind, values in records if kind == 'run' and values]
    assert histories == pytest.approx(expected(run))
    assert configs[0]['model.width'] == 32 and configs[0]['data.source'] == CONFIG['data.source']
  assert not pathlib.Path('wandb').exists()


def read_wandb(path):
  """(kind, values by name) of the rows and configs of a file: after a header of 7 bytes a LevelDB log, blocks
  of 32 KiB with records of a checksum, a length and a type (1: whole, 2 to 4: first to last part).
  """
  from wandb.proto.wandb_internal_pb2 import Record

  content, at, parts = path.read_bytes(), 7, b''
  while at + 7 <= len(content):
    if 2**15 - at % 2**15 < 7:  # no header fits: the block ends in padding
      at += 2**15 - at % 2**15
      continue
    length, part = int.from_bytes(content[at + 4 : at + 6], 'little'), content[at + 6]
    parts += content[at + 7 : at + 7 + length]
    at += 7 + length
    if part in (1, 4):
      record = Record.FromString(parts)
      kind, parts = record.WhichOneof('record_type'), b''
      items = dict(history=record.history.item, run=record.run.config.update).get(kind, ())
      yield kind, {item.key or '.'.join(item.nested_key): json.loads(item.value_json) for item in items}


@pytest.mark.slow  # make sinks installs the package
@pytest.mark.parametrize('store', ['sqlite', 'file'])
def test_mlflow(workdirs, monkeypatch, store):
  uri = f'sqlite:///{workdirs[0].parent}/mlflow.db' if store == 'sqlite' else f'{workdirs[0].parent}/mlruns'
  monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')
  sink = build(f"mlflow('{uri}', experiment='plays')")
  write(sink, workdirs, FIRST)
  write(sink, workdirs, RESUMED)
  client = importlib.import_module('mlflow').MlflowClient(tracking_uri=uri)
  experiment = client.get_experiment_by_name('plays')
  runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
  assert runs.keys() == {'runs/a', 'runs/b'}
  for run, workdir in enumerate(workdirs):
    found = runs[f'runs/{workdir.name}']
    history = client.get_metric_history(found.info.run_id, 'train/loss')
    assert {row.step: row.value for row in history} == pytest.approx(expected(run))
    assert found.data.params['model.width'] == '32' and found.info.status == 'FINISHED'


def test_mlflow_needs_a_store(monkeypatch):
  monkeypatch.delenv('MLFLOW_TRACKING_URI', raising=False)
  sink = spec.build('mlflow', tfm.training.sinks, Sink)
  with pytest.raises(ValueError, match='has no store; use mlflow.*sqlite'):
    sink.import_package()


@pytest.mark.slow  # make sinks installs the package
def test_trackio(workdirs, tmp_path, monkeypatch, capsys):
  monkeypatch.setenv('TRACKIO_DIR', str(tmp_path / 'trackio'))  # read when the package is imported
  sink = build("trackio(project='plays')")
  write(sink, workdirs, FIRST)
  write(sink, workdirs, RESUMED)
  assert capsys.readouterr().out == ''
  store = importlib.import_module('trackio.sqlite_storage').SQLiteStorage
  for run, workdir in enumerate(workdirs):
    name = LoggedRun(workdir, CONFIG, 0)
    rows = store.get_logs('plays', f'{name.name} {name.id}')
    assert {row['step']: row['train/loss'] for row in rows} == pytest.approx(expected(run))


def test_no_program_is_imported_unless_it_is_named():
  modules = [f'tfm.training.sinks.{name}' for name in spec.variant_names(tfm.training.sinks)]
  code = (
    f'import sys, {", ".join(modules)}; print(*sorted({{name.partition(".")[0] for name in sys.modules}}))'
  )
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
  assert {'tfm', 'rich'} <= set(done.stdout.split())
  assert not {'tensorboardX', 'wandb', 'mlflow', 'trackio'} & set(done.stdout.split())


class Failing(Sink):
  def import_package(self):
    raise AssertionError('nothing to import')

  def open(self, run):
    return FailingWriter()


class FailingWriter(Writer):
  def write(self, step, values):
    if step == 2:
      raise ConnectionError('no route')

  def close(self):
    raise AssertionError('it was given up')


def test_a_sink_that_fails_is_given_up_and_the_file_has_all(tmp_path, capsys):
  log = MetricsLog(tmp_path, 0, [Failing()])
  for step in range(1, 5):
    log.write(step, 'train', dict(loss=1.0, batch='ab'))
  log.close()
  assert [row['step'] for row in read(tmp_path / 'metrics.jsonl')] == [1, 2, 3, 4]
  assert capsys.readouterr().err.count('ConnectionError: no route') == 1


def test_a_run_keeps_its_identifier(tmp_path):
  (tmp_path / 'rope' / 'seed0').mkdir(parents=True)
  run = LoggedRun(tmp_path / 'rope' / 'seed0', {}, 0)
  assert run.name == 'rope/seed0'
  assert run.id == run.id == LoggedRun(run.workdir, {}, 7).id
  assert run.id != LoggedRun(tmp_path, {}, 0).id
