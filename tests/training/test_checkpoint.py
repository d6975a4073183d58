"""Which checkpoints stay, and which one a name means."""

import os
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tfm.data import file_hashes
from tfm.parallel import mesh as meshes
from tfm.runs import load as runs
from tfm.runs.train import train
from tfm.training.checkpoint import Checkpoints
from tfm.training.state import State


def test_the_last_few_and_the_best_are_kept(tmp_path):
  checkpoints = Checkpoints(tmp_path, keep=2)
  with pytest.raises(ValueError, match='holds no checkpoint'):
    checkpoints.find_step('last')
  for step, loss in enumerate((5.0, 1.0, 4.0, 3.0, None), 1):
    params = {'kernel': jnp.full((2,), float(step))}
    state = State(jnp.int32(step), params, {'count': jnp.int32(step)}, jnp.zeros(2, jnp.uint32), None)
    checkpoints.save(state, dict(data=step), loss)
    checkpoints.wait()
  checkpoints.close()
  checkpoints = Checkpoints(tmp_path)
  assert sorted(checkpoints.manager.all_steps()) == [2, 4, 5]
  assert [checkpoints.find_step(which) for which in ('last', 'best', '4')] == [5, 2, 4]
  assert checkpoints.read_metadata(2) == dict(data=2)
  target = State(
    jnp.int32(0), {'kernel': jnp.zeros(2)}, {'count': jnp.int32(0)}, jnp.zeros(2, jnp.uint32), None
  )
  state = checkpoints.restore_state(4, target)
  for last, count, mean in ((4, 2, 3.0), (5, 2, 4.5), (5, 3, 11 / 3)):
    averaged = checkpoints.restore_averaged_params(last, count, target.params)
    np.testing.assert_allclose(averaged['kernel'], mean, rtol=1e-6)
  assert state.step == 4 and state.opt_state['count'] == 4 and state.params['kernel'].tolist() == [4.0, 4.0]
  checkpoints.close()


@pytest.mark.slow
@pytest.mark.parametrize('saved, read', [(('fsdp', None), (None, 'fsdp')), ((None, 'fsdp'), ('fsdp', None))])
def test_a_large_array_is_read_into_another_sharding(saved, read, tmp_path):
  """Parts larger than 100 MB lie across the saved ones; a limit on what is read at once once refused them."""
  mesh = meshes.make(dict(data=4, fsdp=2))
  before, after = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (saved, read))
  kernel = jax.device_put(np.arange(7_200 * 7_200, dtype=np.int32).reshape(7_200, 7_200), before)
  rest = jnp.int32(1), {}, jnp.zeros(2, jnp.uint32), None
  checkpoints = Checkpoints(tmp_path)
  checkpoints.save(State(rest[0], {'kernel': kernel}, *rest[1:]), {}, None)
  checkpoints.wait()
  target = {'kernel': jax.ShapeDtypeStruct(kernel.shape, kernel.dtype, sharding=after)}
  restored = checkpoints.restore_params(1, target)['kernel']
  checkpoints.close()
  assert restored.sharding == after
  np.testing.assert_array_equal(restored, kernel)


def test_a_state_is_read_into_the_shardings_of_another_mesh(tmp_path):
  before, after = (
    NamedSharding(meshes.make(dict(fsdp=n), jax.devices()[:n]), PartitionSpec('fsdp')) for n in (2, 4)
  )

  def make(where):
    params, moments = (jax.device_put(first + jnp.arange(8.0), where) for first in (0, 9))
    return State(jnp.int32(1), {'kernel': params}, {'moment': moments}, jnp.zeros(2, jnp.uint32), None)

  checkpoints = Checkpoints(tmp_path)
  checkpoints.save(make(before), {}, None)
  checkpoints.wait()
  restored, expected = checkpoints.restore_state(1, make(after)), make(after)
  checkpoints.close()
  jax.tree.map(np.testing.assert_array_equal, restored, expected)
  assert jax.tree.map(lambda x: x.sharding, restored) == jax.tree.map(lambda x: x.sharding, expected)


def largest(folder):
  return max((path for path in folder.rglob('*') if path.is_file()), key=lambda path: path.stat().st_size)


def flip(path):
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)


def shorten(path):
  path.write_bytes(path.read_bytes()[:-1])


DAMAGES = (flip, 'SHA-256'), (shorten, 'bytes and had'), (pathlib.Path.unlink, 'is missing')


@pytest.mark.parametrize(
  'part, damage, expected_message',
  [
    pytest.param(
      part, *DAMAGES[j], marks=[] if i == j else [pytest.mark.slow], id=f'{part}-{DAMAGES[j][0].__name__}'
    )
    for i, part in enumerate(('params', 'rest', 'run'))
    for j in range(3)
  ],
)
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_is_offered(
  tiny_run, tiny, tmp_path, part, damage, expected_message
):
  workdir = shutil.copytree(tiny_run, tmp_path / 'run')
  path = largest(workdir / 'checkpoints' / '6' / part)
  damage(path)
  with pytest.raises(ValueError) as error:
    train(tiny(), workdir)
  sentence = str(error.value)
  assert (
    sentence.startswith(f'the checkpoint 6 in {workdir / "checkpoints"} is damaged: {path} ')
    and expected_message in sentence
  )
  assert '--step=3 reads it' in sentence and f'after {workdir / "checkpoints" / "6"} is deleted' in sentence
  if part == 'params':
    with pytest.raises(ValueError, match='the checkpoint 6 .* is damaged'):
      runs.load(workdir)
    assert runs.load(workdir, '3').step == 3


@pytest.mark.parametrize('content', ['', '{"params/a": [1', '[]', '{"params/a": 1}', '\0'])
def test_digests_that_cannot_be_read_are_damage_of_their_checkpoint(tiny_run, tiny, tmp_path, content):
  workdir = shutil.copytree(tiny_run, tmp_path / 'run')
  path = workdir / 'checkpoints' / '6' / file_hashes.FILE
  path.write_text(content)
  for read in (lambda: runs.load(workdir), lambda: train(tiny(), workdir)):
    with pytest.raises(ValueError) as error:
      read()
    sentence = str(error.value)
    damaged = f'the checkpoint 6 in {workdir / "checkpoints"} is damaged: '
    assert sentence.startswith(f'{damaged}{path} cannot be read as sizes and digests: ')
    assert '--step=3 reads it' in sentence


@pytest.mark.slow
def test_training_goes_on_from_the_one_before(tiny_run, tiny, tmp_path):
  workdir = shutil.copytree(tiny_run, tmp_path / 'run')
  flip(largest(workdir / 'checkpoints' / '6' / 'rest'))
  shutil.rmtree(workdir / 'checkpoints' / '6')
  train(tiny(), workdir)
  for path in ('params', 'rest'):
    a, b = (Checkpoints(place).manager.restore(6)[path] for place in (workdir, tiny_run))
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_every_file_of_a_checkpoint_has_its_digest(tiny_run):
  folder = tiny_run / 'checkpoints' / '6'
  reported = file_hashes.read_digests(folder)
  found = {str(path.relative_to(folder)) for path in folder.rglob('*') if path.is_file()}
  assert found - set(reported) == {file_hashes.FILE, *file_hashes.WRITTEN_LATER}
  assert any(name.startswith('params/') for name in reported) and not file_hashes.find_damage(
    folder, reported
  )


def test_a_checkpoint_without_digests_is_read_with_a_notice(tiny_run, tmp_path, capsys):
  workdir = shutil.copytree(tiny_run, tmp_path / 'run')
  path = workdir / 'checkpoints' / '6' / file_hashes.FILE
  path.unlink()
  assert runs.load(workdir).step == 6
  assert f'6 has no {file_hashes.FILE}: its params is read without verification' in capsys.readouterr().err
  path.write_text('{}')
  with pytest.raises(ValueError, match=f'{file_hashes.FILE} does not list run/'):
    runs.load(workdir)


@pytest.mark.parametrize('part', ['run/metadata', 'params'])
def test_one_without_digests_that_is_damaged_is_named(tiny_run, tmp_path, part):
  """Nothing finds the damage before Orbax does."""
  workdir = shutil.copytree(tiny_run, tmp_path / 'run')
  step = workdir / 'checkpoints' / '6'
  (step / file_hashes.FILE).unlink()
  largest = max(
    (path for path in (step / part.partition('/')[0]).rglob('*') if path.is_file()), key=os.path.getsize
  )
  (step / part if '/' in part else largest).write_text('[1')
  with pytest.raises(ValueError, match=f'^{step} cannot be read as a checkpoint: '):
    runs.load(workdir)


def empty(folder):
  shutil.rmtree(folder)
  folder.mkdir()


@pytest.mark.parametrize(
  'damage, message',
  [
    (empty, r'the checkpoint 6 in .* is damaged: .*/6 lacks its folder run; .* --step=3 reads it'),
    (
      lambda folder: shutil.rmtree(folder / 'params'),
      r'is damaged: .*/6 lacks its folder params; .* --step=3 reads it',
    ),
    (
      lambda folder: folder.rename(folder.parent / '9'),
      r'checkpoints/9 was saved as step 6; rename it to 6$',
    ),
    (
      lambda folder: (folder / 'metrics' / 'metrics').write_text('junk'),
      r"6/metrics/metrics cannot be read as a checkpoint's loss: ",
    ),
  ],
)
def test_a_changed_folder_is_refused_by_name(tiny_run, tiny, tmp_path, damage, message):
  workdir = shutil.copytree(tiny_run, tmp_path / 'run')
  damage(workdir / 'checkpoints' / '6')
  with pytest.raises(ValueError, match=message):
    runs.load(workdir)
