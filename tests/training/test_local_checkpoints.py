"""Local checkpoints: training resumes from them when they are newer and usable, and prints why not
otherwise."""

import pathlib
import shutil

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tfm.config.assemble import Experiment
from tfm.config.validate import validate_run
from tfm.parallel import mesh as meshes
from tfm.parallel import processes
from tfm.runs.run_dir import RunDir
from tfm.runs.train import train, train_ensemble
from tfm.training import local_checkpoints
from tfm.training.checkpoint import Checkpoints
from tfm.training.local_checkpoints import NAME_FILE, LocalCheckpoints
from tfm.training.metrics import read
from tfm.training.reporters import Report
from tfm.training.state import State


class Died(Exception):
  """What ends a run in the middle of a step."""


@pytest.fixture(scope='module')
def settings():
  """Checkpoints at 4 and 8, near ones at 2, 6 and 10."""
  return {
    'training.steps': 12,
    'training.evaluate_every': 4,
    'training.save_local_every': 'steps(2)',
    'mesh.data': 4,
    'mesh.fsdp': 2,
  }


@pytest.fixture(scope='module')
def unbroken(tiny, settings, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('unbroken')
  train(tiny(**settings | {'training.save_local_every': tiny().training.save_local_every}), workdir)
  return workdir


@pytest.fixture
def dies(monkeypatch):
  """(config, workdir, a step) → has the run die as that step is logged."""

  def make(config, workdir, last):
    plain = Report.record_step

    def trained(self, step, *reported):
      if step == last:
        raise Died
      plain(self, step, *reported)

    with monkeypatch.context() as patch, pytest.raises(Died):
      patch.setattr(Report, 'record_step', trained)
      train(config, workdir)

  return make


def list_saved_steps(folder):
  """The near steps of this process, of whatever run."""
  return sorted(int(path.name) for path in pathlib.Path(folder).glob('*/process_0/*') if path.name.isdigit())


def assert_same_run(workdir, expected):
  ours, theirs = (
    [
      (row['step'], row['batch'], row['loss'])
      for row in read(place / 'metrics.jsonl')
      if row['split'] == 'train'
    ]
    for place in (workdir, expected)
  )
  assert ours == theirs
  for part in ('params', 'rest'):
    a, b = (Checkpoints(place).manager.restore(12)[part] for place in (workdir, expected))
    jax.tree.map(np.testing.assert_array_equal, a, b)


def steps_begun(printed):
  """The steps from which a run stderr_text to go on."""
  return [
    int(line.rpartition(' ')[2]) for line in printed.splitlines() if line.startswith('resuming from step')
  ]


@pytest.mark.slow
def test_it_goes_on_from_the_newest_and_ends_as_the_unbroken_run(
  tiny, settings, unbroken, dies, tmp_path, capsys
):
  config = tiny(**settings, **{'training.local_checkpoint_dir': str(tmp_path / 'disk')})
  dies(config, tmp_path / 'run', 8)
  assert list_saved_steps(tmp_path / 'disk') == [2, 6] and Checkpoints(tmp_path / 'run').steps() == [4]
  capsys.readouterr()
  dies(config, tmp_path / 'run', 9)
  train(config, tmp_path / 'run')
  assert steps_begun(capsys.readouterr().err) == [6, 8]  # what lasts is newer then
  assert_same_run(tmp_path / 'run', unbroken)
  assert list_saved_steps(tmp_path / 'disk') == []  # nothing is left of a run that has ended


@pytest.mark.slow
def test_how_often_follows_from_the_time_of_a_save(tiny, settings, dies, tmp_path):
  """The first save measures it; failures every few microseconds then require one with every step."""
  near = {
    'training.local_checkpoint_dir': str(tmp_path / 'disk'),
    'training.save_local_every': 'auto(hours=1e-9)',
  }
  dies(tiny(**settings | near), tmp_path / 'run', 8)
  assert list_saved_steps(tmp_path / 'disk') == [6, 7]


def test_more_machines_of_the_same_kind_are_another_layout(tiny, monkeypatch):
  """Process 0 then has the devices that it had, and `mesh.data=-1` says the same."""
  before = local_checkpoints.device_layout(tiny().to_dict())
  monkeypatch.setattr(jax, 'process_count', lambda: 4)
  assert local_checkpoints.device_layout(tiny().to_dict()) != before


@pytest.mark.parametrize('axes', [dict(fsdp=8), dict(data=4, fsdp=2)])
def test_one_process_has_complete_copies(tmp_path, axes):
  """One copy over all devices, or several."""
  kernel = jax.device_put(np.arange(8), NamedSharding(meshes.make(axes), PartitionSpec('fsdp')))
  near = local_checkpoints.LocalCheckpoints(str(tmp_path / 'disk'), tmp_path)
  near.require_complete_copies(
    State(jax.numpy.int32(1), dict(kernel=kernel), dict(moment=kernel), kernel, None)
  )
  near.close()


def lost(folder, workdir):
  shutil.rmtree(folder)


def flipped(folder, workdir):
  path = max(
    (path for path in folder.glob('*/process_0/6/params/**/*') if path.is_file()),
    key=lambda path: path.stat().st_size,
  )
  path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


def moved(folder, workdir):
  (workdir / NAME_FILE).write_text('{"workdir": "elsewhere", "name": "other"}')


@pytest.mark.slow
@pytest.mark.parametrize(
  'harm, stderr_text',
  [
    pytest.param(lost, '', marks=pytest.mark.slow),
    (flipped, 'cannot resume from local checkpoint 6: the checkpoint 6 in'),
    pytest.param(moved, '', marks=pytest.mark.slow),
  ],
)
def test_what_is_lost_or_damaged_is_not_gone_on_from(
  tiny, settings, unbroken, dies, tmp_path, capsys, harm, stderr_text
):
  config = tiny(**settings, **{'training.local_checkpoint_dir': str(tmp_path / 'disk')})
  dies(config, tmp_path / 'run', 8)
  harm(tmp_path / 'disk', tmp_path / 'run')
  capsys.readouterr()
  train(config, tmp_path / 'run')
  reported = capsys.readouterr().err
  assert steps_begun(reported) == [4] and stderr_text in reported
  assert_same_run(tmp_path / 'run', unbroken)


@pytest.mark.slow
def test_of_damaged_ones_it_falls_back_to_the_one_before(tiny, settings, unbroken, dies, tmp_path, capsys):
  config = tiny(
    **settings
    | {'training.local_checkpoint_dir': str(tmp_path / 'disk'), 'training.save_local_every': 'steps(1)'}
  )
  dies(config, tmp_path / 'run', 8)
  assert list_saved_steps(tmp_path / 'disk') == [6, 7]
  torn = next((tmp_path / 'disk').glob('*/process_0/7/run/*'))
  torn.write_bytes(torn.read_bytes()[:-9])
  capsys.readouterr()
  train(config, tmp_path / 'run')
  reported = capsys.readouterr().err
  assert steps_begun(reported) == [6]
  assert 'cannot resume from local checkpoint 7' in reported and f'{torn} has' in reported
  assert 'trying step 6' in reported
  assert_same_run(tmp_path / 'run', unbroken)


@pytest.mark.slow
def test_a_torn_name_of_the_folder_is_replaced(tiny, settings, unbroken, dies, tmp_path, capsys):
  config = tiny(**settings, **{'training.local_checkpoint_dir': str(tmp_path / 'disk')})
  dies(config, tmp_path / 'run', 8)
  (tmp_path / 'run' / NAME_FILE).write_text('{"workdir": "/')
  capsys.readouterr()
  train(config, tmp_path / 'run')
  reported = capsys.readouterr().err
  assert steps_begun(reported) == [4] and f'{NAME_FILE} cannot be read' in reported
  assert_same_run(tmp_path / 'run', unbroken)


@pytest.mark.slow
def test_another_mesh_goes_on_from_what_lasts(tiny, settings, dies, tmp_path, capsys):
  near = {'training.local_checkpoint_dir': str(tmp_path / 'disk')}
  dies(tiny(**settings, **near), tmp_path / 'run', 8)
  capsys.readouterr()
  train(tiny(**settings | {'mesh.data': 2, 'mesh.fsdp': 4}, **near), tmp_path / 'run')
  reported = capsys.readouterr().err
  assert steps_begun(reported) == [4]
  assert 'cannot resume from local checkpoint 6: this run has mesh' in reported


@pytest.mark.slow
def test_a_new_run_in_the_same_place_finds_nothing(tiny, settings, dies, tmp_path, capsys):
  config = tiny(**settings, **{'training.local_checkpoint_dir': str(tmp_path / 'disk')})
  dies(config, tmp_path / 'run', 8)
  shutil.rmtree(tmp_path / 'run')
  capsys.readouterr()
  dies(config, tmp_path / 'run', 2)
  assert not steps_begun(capsys.readouterr().err)


@pytest.mark.slow
def test_another_config_is_refused_of_a_near_one_too(tiny, settings, dies, tmp_path):
  near = {'training.local_checkpoint_dir': str(tmp_path / 'disk')}
  dies(tiny(**settings, **near), tmp_path / 'run', 3)
  with pytest.raises(ValueError, match='optimizer.learning_rate: '):
    train(tiny(**settings, **near, **{'optimizer.learning_rate': 0.5}), tmp_path / 'run')


def test_of_several_processes_those_steps_count_that_all_have(tmp_path, monkeypatch):
  near = LocalCheckpoints(str(tmp_path / 'disk'), tmp_path / 'run')
  monkeypatch.setattr(Checkpoints, 'steps', lambda self: [2, 6])
  monkeypatch.setattr(processes, 'gather_bytes', lambda mine: [mine, b'[2, 4]'])
  assert near.steps() == [2]
  near.close()


def test_refusals(tiny, tmp_path):
  (tmp_path / 'file').write_text('')
  near = {'training.local_checkpoint_dir': str(tmp_path / 'file')}
  with pytest.raises(ValueError, match=r"config.training.local_checkpoint_dir='.*file' is not writable"):
    train(tiny(**near), tmp_path / 'run')
  with pytest.raises(
    ValueError, match="config.training.local_checkpoint_dir='gs://b/near' is not a local folder"
  ):
    validate_run(Experiment(tiny(**{'training.local_checkpoint_dir': 'gs://b/near'})), 1)
  with pytest.raises(ValueError, match="config.training.save_local_every='never'"):
    validate_run(Experiment(tiny(**{'training.save_local_every': 'never'})), 1)
  with pytest.raises(
    ValueError, match=r"config.training.save_local_every='steps\(5\)' has no effect without"
  ):
    validate_run(Experiment(tiny(**{'training.save_local_every': 'steps(5)'})), 1)
  config = tiny(**near)
  with pytest.raises(
    ValueError, match='config.training.local_checkpoint_dir=.* is not supported by ensembles'
  ):
    train_ensemble([RunDir.from_config(config, seed, tmp_path / str(seed)) for seed in (0, 1)])
