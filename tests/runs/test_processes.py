"""Several processes are one run: real ones, on loopback, that read, train, save, stop and die."""

import collections
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from tfm.data import cache, pipeline, preparation
from tfm.data.sources.stdlib import Stdlib
from tfm.data.tokenizers.bytes import Bytes
from tfm.parallel import processes
from tfm.runs.train import train
from tfm.training.metrics import read


STEPS, EVERY = 60, 20
# The sums of a step are added in another order when other devices hold the rows: a few units in the last
# place of float32 (1.2e-7), seen up to 1.5e-7 on equal devices. Over 60 steps of Adam on other meshes they
# grow (tests/runs/test_resume.py).
SAME_DEVICES, OTHER_DEVICES = 2e-6, 1e-4

TFM = '-m', 'tfm'
# `tfm train`, which also notes the rows that it reads for training.
NOTING = textwrap.dedent("""
  import dataclasses, sys
  from tfm.commands import cli
  from tfm.data import pipeline

  class Noting:
    def __init__(self, rows, number):
      self.rows, self.number = rows, number

    def __getattr__(self, name):
      return getattr(self.rows, name)

    def __getitem__(self, row):
      sys.__stdout__.write(f'{type(self.rows).__name__} {self.number} {row}\\n')
      return self.rows[row]

  plain = pipeline.Batches.__getitem__

  def getitem(self, i):
    return plain(dataclasses.replace(self, rows=Noting(self.rows, i)), i)

  pipeline.Batches.__getitem__ = getitem
  sys.exit(cli.main(sys.argv[1:]))
""")

# A mesh in which the devices of the processes take turns, as those of hosts do that hold tiles of a torus.
TAKING_TURNS = textwrap.dedent("""
  from jax.experimental import mesh_utils

  contiguous = mesh_utils.create_device_mesh

  def create_device_mesh(shape, devices, **options):
    count = len({device.process_index for device in devices})
    ordered = sorted(devices, key=lambda device: device.id)
    turns = [device for i in range(len(devices) // count) for device in ordered[i :: len(devices) // count]]
    return contiguous(shape, turns, **options)

  mesh_utils.create_device_mesh = create_device_mesh
""")

# `tfm train`, of which process 1 dies between the last that it does for its second checkpoint and telling so.
DYING = textwrap.dedent("""
  import itertools, os, signal, sys
  import jax
  from orbax.checkpoint._src.checkpointers import async_checkpointer
  from tfm.commands import cli

  saves, commit = itertools.count(1), async_checkpointer._AsyncManager.start_async_commit

  def start_async_commit(*args, **kwargs):
    if jax.process_index() == 1 and next(saves) == 2:
      os.kill(os.getpid(), signal.SIGKILL)
    return commit(*args, **kwargs)

  async_checkpointer._AsyncManager.start_async_commit = start_async_commit
  sys.exit(cli.main(sys.argv[1:]))
""")


@pytest.fixture(scope='module')
def fields(book):
  """Of a small run."""
  return {
    'data.source': f'text({str(book)!r})',
    'data.length': 32,
    'data.packing': 'first_fit',
    'model.layers': 2,
    'model.width': 32,
    'model.heads': 4,
    'model.dropout.residual': 0.1,
    'optimizer.warmup': 2,
    'training.batch_size': 8,
    'training.log_every': 1,
    'training.evaluate_every': EVERY,
    'training.evaluation_batches': 2,
    'training.steps': STEPS,
  }


@pytest.fixture(scope='module')
def start(fields, tmp_path_factory):
  """(processes, devices of each, workdirs or the one, flags, program) → the running processes of a run."""
  config = tmp_path_factory.mktemp('config') / 'plain.py'
  config.write_text('def get_config(arg=""):\n  return {}\n')

  def make(count, devices, workdirs, *more, program=TFM):
    with socket.socket() as free:
      free.bind(('localhost', 0))
      port = free.getsockname()[1]
    # Of two flags of a name the last counts.
    env = dict(
      os.environ, XLA_FLAGS=f'{os.environ["XLA_FLAGS"]} --xla_force_host_platform_device_count={devices}'
    )
    workdirs = workdirs if isinstance(workdirs, list) else [workdirs] * count
    alone = count == 1
    return [
      subprocess.Popen(
        [
          sys.executable,
          *program,
          'train',
          f'--config={config}',
          f'--workdir={workdirs[i]}',
          *(f'--config.{path}={value}' for path, value in fields.items()),
          *(
            []
            if alone
            else [
              f'--processes={count}',
              f'--process={i}',
              f'--coordinator=localhost:{port}',
              '--heartbeat_timeout=10',
            ]
          ),
          *more,
        ],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
      )
      for i in range(count)
    ]

  return make


def finish(started, timeout=300):
  """[(exit status, stdout, stderr)] of processes that end by themselves."""
  printed = [process.communicate(timeout=timeout) for process in started]
  return [(process.returncode, *one) for process, one in zip(started, printed)]


def finished(started):
  """As `finish`; all must have come to their end."""
  ends = finish(started)
  assert all(status == 0 for status, *_ in ends), ends
  return ends


def when(happened, started):
  """Waits for something; fails if a process ends before."""
  deadline = time.time() + 300
  while not happened():
    assert all(process.poll() is None for process in started) and time.time() < deadline, finish(started, 30)
    time.sleep(0.005)


def reached(workdir, step):
  return lambda: any(
    row['step'] >= step and row['split'] == 'train' for row in read(workdir / 'metrics.jsonl')
  )


def history(workdir, split='train'):
  return [row for row in read(workdir / 'metrics.jsonl') if row['split'] == split]


def assert_same_run(workdir, expected, rtol):
  """The same batches, exactly, and the same numbers."""
  ours, theirs = (history(place) for place in (workdir, expected))
  assert [(row['step'], row['batch']) for row in ours] == [(row['step'], row['batch']) for row in theirs]
  assert len({row['batch'] for row in ours}) == len(ours)
  for split, names in (
    ('train', ('loss', 'gradient_norm')),
    ('validation', ('loss', 'bits_per_byte', 'tokens')),
  ):
    ours, theirs = (history(place, split) for place in (workdir, expected))
    assert len(ours) == len(theirs) > 0
    for name in names:
      np.testing.assert_allclose(
        [row[name] for row in ours], [row[name] for row in theirs], rtol=rtol, err_msg=name
      )


def alone(tiny, fields, workdir, **changes):
  """The run of this process, which has eight devices."""
  train(tiny(**fields | changes), workdir)
  return workdir


@pytest.mark.slow
@pytest.mark.parametrize(
  'count, layout, source',
  [(2, '', ''), (4, TAKING_TURNS, ''), (2, '', 'mix(book=0.7, library=0.3)')],
  ids=['blocks', 'tiles', 'mixture'],
)
def test_processes_train_as_one_and_read_their_own_rows(start, tiny, fields, tmp_path, count, layout, source):
  steps = {'training.steps': 6, 'training.evaluate_every': 3}
  if source:  # texts, and tokens that all processes read from one folder
    data = pipeline.open_text(Stdlib(), Bytes(), cache.directory())
    engine = preparation.InProcess(cache.directory())
    preparation.prepare_tokens(data, dict(text='bytes'), f'{tmp_path}/tokens', engine)
    sources = dict(book=fields['data.source'], library=f"prepared('{tmp_path}/tokens')")
    steps |= {'data.source': source} | {f'data.sources.{name}': text for name, text in sources.items()}
  ends = finished(
    start(
      count,
      8 // count,
      tmp_path / 'many',
      *(f'--config.{path}={value}' for path, value in steps.items()),
      program=('-c', layout + NOTING),
    )
  )
  expected = alone(tiny, fields, tmp_path / 'one', **steps)
  assert_same_run(tmp_path / 'many', expected, SAME_DEVICES)
  assert (tmp_path / 'many' / 'config.json').read_text() == (expected / 'config.json').read_text()
  # One speaks; of the others only the runtime does.
  assert 'validation' in ends[0][2] and not any('validation' in err for _, _, err in ends[1:])
  notes = [re.findall(r'(\w+Rows) (\d+) (\d+)\n', out) for _, out, _ in ends]
  rows = collections.defaultdict(list)
  for process, note in enumerate(notes):
    for kind, batch, row in set(note):
      rows[kind, batch].append((process, row))
  whole = {key: found for key, found in rows.items() if len({row for _, row in found}) == 8}
  assert len(whole) >= 6
  for found in whole.values():
    assert len(found) == 8  # no row is read twice
    assert collections.Counter(process for process, _ in found) == {
      process: 8 // count for process in range(count)
    }


@pytest.mark.slow
def test_processes_come_and_go(start, tiny, fields, tmp_path):
  """Four, of which one gets a signal to stop; two, of which one is interrupted; and one to the end."""
  place, expected = tmp_path / 'elastic', alone(tiny, fields, tmp_path / 'unbroken')
  for count, step, which, number in ((4, 10, 2, signal.SIGTERM), (2, 30, 1, signal.SIGINT)):
    started = start(count, 2, place)
    when(reached(place, step), started)
    started[which].send_signal(number)
    ends = finished(started)
    assert 'run the same command to resume' in ends[0][2]
    saved = max(int(path.name) for path in (place / 'checkpoints').iterdir())
    assert step <= saved < STEPS and history(place)[-1]['step'] == saved  # all stopped where it is saved
  finished(start(1, 2, place))
  assert_same_run(place, expected, OTHER_DEVICES)


@pytest.mark.slow
@pytest.mark.parametrize('program', [TFM, ('-c', DYING)], ids=['anywhere', 'at its end'])
def test_killed_in_mid_save_the_rest_stops_and_all_go_on(start, tiny, fields, tmp_path, program):
  place, expected = tmp_path / 'killed', alone(tiny, fields, tmp_path / 'unbroken')
  started = start(2, 4, place, program=program)
  saving = place / 'checkpoints' / f'{2 * EVERY}.orbax-checkpoint-tmp'
  if program == TFM:
    when(saving.exists, started)
    started[1].kill()
  (status, _, printed), (killed, _, last) = finish(started, 120)
  assert saving.exists() and not (place / 'checkpoints' / str(2 * EVERY)).exists()  # it was in mid-save
  assert killed == -signal.SIGKILL and 'process 1 of 2: it was killed' in last
  assert (
    status in (processes.PEER_LOST_STATUS, -signal.SIGABRT)
    and 'process of this run is gone' in printed
    and processes.RESUME_HINT in printed
  )
  finished(start(2, 4, place))
  assert_same_run(place, expected, SAME_DEVICES * 10)


@pytest.mark.slow
def test_runs_resume_from_local_checkpoints_that_all_processes_have(start, tiny, fields, tmp_path):
  place, disk = tmp_path / 'run', tmp_path / 'disk'
  # Parameters are cut over the processes: each has a part of them that the other has not.
  flags = [
    f'--config.training.local_checkpoint_dir={disk}',
    '--config.training.save_local_every=steps(5)',
    '--config.mesh.data=1',
    '--config.mesh.fsdp=4',
  ]
  expected = alone(tiny, fields, tmp_path / 'unbroken')
  begun = []
  for step, lose in ((EVERY + 13, False), (2 * EVERY + 7, True)):
    started = start(2, 2, place, *flags)
    when(reached(place, step), started)
    started[1].kill()
    begun.append(finish(started, 60)[0][2])
    if lose:  # the machine is gone
      shutil.rmtree(next(disk.glob('*/process_1')))
  begun.append(finished(start(2, 2, place, *flags))[0][2])
  near, lasts = (int(re.search(r'resuming from step (\d+)', printed)[1]) for printed in begun[1:])
  assert EVERY < near < 2 * EVERY and near % 5 == 0 and lasts == 2 * EVERY
  assert_same_run(place, expected, OTHER_DEVICES)
  assert not [path for path in disk.glob('*/*/*')]


@pytest.mark.slow
def test_no_local_checkpoint_is_incomplete(start, tmp_path):
  """The second of two processes with three devices each has a half of one copy, and another copy whole."""
  ends = finish(
    start(
      2,
      3,
      tmp_path / 'run',
      f'--config.training.local_checkpoint_dir={tmp_path / "disk"}',
      '--config.training.batch_size=6',
      '--config.mesh.data=3',
      '--config.mesh.fsdp=2',
    ),
    120,
  )
  for status, _, printed in ends:
    assert (
      status == 2
      and 'in this mesh process 1 has parts of several copies' in printed
      and 'Traceback' not in printed
    )


@pytest.mark.slow
@pytest.mark.parametrize(
  'dead, number', [(1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP), (0, signal.SIGSTOP)]
)
def test_without_a_peer_the_rest_stops_with_the_reason(start, tmp_path, dead, number):
  started = start(2, 1, tmp_path, '--config.training.steps=100000')
  when(reached(tmp_path, 3), started)
  started[dead].send_signal(number)
  try:
    _, printed = started[1 - dead].communicate(timeout=60)  # six times the heartbeat
  finally:
    started[dead].kill()
  assert started[1 - dead].returncode in (processes.PEER_LOST_STATUS, -signal.SIGABRT)
  assert (
    f'process {1 - dead} of 2: ' in printed
    and 'process of this run is gone' in printed
    and processes.RESUME_HINT in printed
  )
  finish(started)


@pytest.mark.slow
def test_what_processes_do_not_share_is_refused_by_all(start, tmp_path):
  for (status, _, printed), process in zip(finish(start(2, 1, [tmp_path / 'a', tmp_path / 'b']), 120), '01'):
    assert (
      status == 2
      and f'tfm train: process {process} of 2: what --workdir=' in printed
      and 'Traceback' not in printed
    ), printed


# `tfm train`, with something wrong in one process that the others cannot know.
REFUSING = textwrap.dedent("""
  import sys
  import jax
  from tfm.commands import cli
  from tfm.runs import train

  plain = train.train

  def refuse(*args):
    if jax.process_index() == {process}:
      raise ValueError('the disk of this machine is full of holes')
    plain(*args)

  train.train = refuse
  sys.exit(cli.main(sys.argv[1:]))
""")


@pytest.mark.slow
@pytest.mark.parametrize('process', [0, 2])
def test_the_refusal_of_one_process_ends_all(start, tmp_path, process):
  begin = time.monotonic()
  ends = finish(start(3, 1, tmp_path, program=('-c', REFUSING.format(process=process))), 60)
  assert time.monotonic() - begin < 40
  for status, _, printed in ends:
    assert status == 2, printed
    assert printed.splitlines()[-1] == (
      f'tfm train: process {process} of 3: the disk of this machine is full of holes'
    )


@pytest.mark.slow
@pytest.mark.parametrize(
  'config, expected_message',
  [
    ('dict(optimizer=dict(learning_rate=os.getpid() * 1e-9))', 'config.optimizer.learning_rate'),
    ("dict(model=dict(blocks={f'b{os.getpid()}': dict(heads=2)}))", 'which fields --config has'),
  ],
)
def test_what_differs_between_configs_is_named(start, tmp_path, config, expected_message):
  file = tmp_path / 'own.py'
  file.write_text(f'import os\n\ndef get_config(arg=""):\n  return {config}\n')
  for status, _, err in finish(start(2, 1, tmp_path / 'run', f'--config={file}'), 120):
    assert (
      status == 2
      and f': {expected_message} is not the same in all processes: process 1 differs' in err
      and 'Traceback' not in err
    )


@pytest.mark.slow
def test_a_missing_process_is_reported(start, tmp_path):
  alone, *others = start(2, 1, tmp_path, '--connect_timeout=1')[::-1]
  for other in others:
    other.kill()
  (status, _, printed), *_ = finish([alone, *others], 60)
  assert status == -signal.SIGABRT and not (tmp_path / 'config.json').exists()
  assert printed.splitlines()[-1] == (
    'tfm train: process 1 of 2: it was killed, or aborted by JAX (see above) because not all processes '
    'connected within --connect_timeout=1 '
    'seconds; check that all were started, each with its own --process, and reach the same --coordinator, a '
    'free port of process 0'
  )
