"""The runs of an ensemble equal the runs trained alone, stop and resume like them, and diverge one by one."""

import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.runs import load as runs
from tfm.runs.run_dir import RunDir
from tfm.runs.train import train, train_ensemble
from tfm.training import metrics, vmapped_runs


SEEDS = 3, 4


def train_seeds(config, folders):
  return train_ensemble([RunDir.from_config(config, seed, folder) for seed, folder in folders.items()])


def rows(workdir):
  return metrics.read(pathlib.Path(workdir) / 'metrics.jsonl')


def values(workdir, name):
  return [row[name] for row in rows(workdir) if name in row]


@pytest.fixture(scope='module')
def alone(tiny, tmp_path_factory):
  """A folder for each seed, each trained by itself."""
  result = {seed: tmp_path_factory.mktemp(f'alone{seed}') for seed in SEEDS}
  for seed, folder in result.items():
    train(tiny(seed=seed, **DROPPED), folder)
  return result


@pytest.fixture(scope='module')
def side_by_side(tiny, tmp_path_factory):
  """The same, trained together."""
  result = {seed: tmp_path_factory.mktemp(f'together{seed}') for seed in SEEDS}
  train_seeds(tiny(**DROPPED), result)
  return result


# With dropout, so that each run's own randomness shows.
DROPPED = {'model.dropout.residual': 0.1}


@pytest.mark.slow
@pytest.mark.parametrize('seed', SEEDS)
def test_each_is_the_run_that_it_would_be_alone(alone, side_by_side, seed):
  ours, theirs = side_by_side[seed], alone[seed]
  assert values(ours, 'batch') == values(theirs, 'batch') and values(ours, 'step') == values(theirs, 'step')
  for name in ('loss', 'gradient_norm', 'accuracy', 'bits_per_byte'):
    np.testing.assert_allclose(values(ours, name), values(theirs, name), rtol=2e-5)
  assert (ours / 'config.json').read_text() == (theirs / 'config.json').read_text()
  ours, theirs = runs.load(ours), runs.load(theirs)
  assert ours.config.seed == seed and ours.step == theirs.step == 6
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), ours.params, theirs.params)


@pytest.mark.slow
def test_at_once_is_as_one_after_another(tiny, side_by_side, tmp_path, monkeypatch):
  """Accelerators do it so."""
  monkeypatch.setattr(vmapped_runs, 'runs_vmapped', lambda where: True)
  monkeypatch.setattr(
    vmapped_runs, 'make_mesh', lambda runs, devices, mesh=vmapped_runs.make_mesh: mesh(runs, devices[:1])
  )
  result = {seed: tmp_path / str(seed) for seed in SEEDS}
  train_seeds(tiny(**DROPPED), result)
  for seed in SEEDS:
    np.testing.assert_allclose(values(result[seed], 'loss'), values(side_by_side[seed], 'loss'), rtol=2e-5)


@pytest.mark.slow
def test_seeds_differ(side_by_side):
  first, second = side_by_side.values()
  assert (
    values(first, 'batch')[0] != values(second, 'batch')[0]
    and values(first, 'loss')[0] != values(second, 'loss')[0]
  )


@pytest.mark.slow
def test_they_go_on_from_the_last_step_that_all_have(tiny, side_by_side, tmp_path):
  folders = {seed: tmp_path / str(seed) for seed in SEEDS}
  train_seeds(tiny(**DROPPED, **{'training.steps': 6}), folders)
  # As if a kill had come after the last save of one run, and before that of the other.
  shutil.rmtree(folders[SEEDS[1]] / 'checkpoints' / '6')
  train_seeds(tiny(**DROPPED), folders)
  for seed in SEEDS:
    assert values(folders[seed], 'step') == values(side_by_side[seed], 'step')
    assert values(folders[seed], 'batch') == values(side_by_side[seed], 'batch')
    ours, unbroken = runs.load(folders[seed]), runs.load(side_by_side[seed])
    assert ours.step == 6
    jax.tree.map(np.testing.assert_array_equal, ours.params, unbroken.params)


@pytest.mark.slow
def test_one_goes_on_alone(tiny, side_by_side, alone, tmp_path):
  shutil.copytree(side_by_side[SEEDS[0]], tmp_path / 'run')
  shutil.rmtree(tmp_path / 'run' / 'checkpoints' / '6')
  train(tiny(seed=SEEDS[0], **DROPPED), tmp_path / 'run')
  assert values(tmp_path / 'run', 'batch') == values(alone[SEEDS[0]], 'batch')
  np.testing.assert_allclose(values(tmp_path / 'run', 'loss'), values(alone[SEEDS[0]], 'loss'), rtol=2e-5)


@pytest.mark.slow
def test_what_diverges_stops_and_the_others_go_on(tiny, side_by_side, tmp_path, monkeypatch):
  """The loss of run 0 becomes no number in step 5."""
  step, key = vmapped_runs.ensemble_step, jax.random.key_data(jax.random.split(jax.random.key(SEEDS[0]))[1])

  def stepped(one, *rest):
    def tainted(state, batch, peak):
      after, found = one(state, batch, peak)
      ill = (state.step == 4) & (state.key == key).all()
      return after, found | dict(loss=jnp.where(ill, jnp.nan, found['loss']))

    return step(tainted, *rest)

  monkeypatch.setattr(vmapped_runs, 'ensemble_step', stepped)
  folders = {seed: tmp_path / str(seed) for seed in SEEDS}
  report = train_seeds(tiny(**DROPPED), folders)
  assert report.live == [1] and 'loss is nan at step 5' in report.diverged[0]
  *logged, last = rows(folders[SEEDS[0]])
  assert max(row['step'] for row in logged) == 4 and runs.load(folders[SEEDS[0]]).step == 3
  assert last == dict(step=5, split='train', diverged=report.diverged[0])
  np.testing.assert_allclose(
    values(folders[SEEDS[1]], 'loss'), values(side_by_side[SEEDS[1]], 'loss'), rtol=1e-6
  )


@pytest.mark.parametrize('runs, devices, used', [(8, 8, 8), (6, 8, 6), (3, 2, 1), (4, 3, 2), (1, 8, 1)])
def test_as_many_devices_as_divide_the_runs(runs, devices, used):
  mesh = vmapped_runs.make_mesh(runs, jax.devices()[:devices])
  assert mesh.shape['runs'] == mesh.size == used


def test_the_step_of_a_single_run_keeps_the_shardings_of_its_state():
  run = vmapped_runs.SingleRun(jax.make_mesh((2,), ('data',), devices=jax.devices()[:2]))
  where = jax.NamedSharding(run.mesh, jax.P('data'))
  step = run.jit_step(lambda peak: lambda state, batch: (state.at[0].add(batch), {}), where, None)
  assert step(jnp.zeros(4), jnp.float32(1))[0].sharding == where


def test_each_device_holds_its_own_runs():
  mesh = vmapped_runs.make_mesh(2, jax.devices()[:2])
  states = vmapped_runs.stack_states([dict(x=jnp.full(3, run)) for run in (0, 1)], mesh)
  assert [shard.data.tolist() for shard in states['x'].addressable_shards] == [[[0] * 3], [[1] * 3]]


@pytest.mark.parametrize(
  'fields, sentence', [({'mesh.tensor': 2}, r"config.mesh=\{'tensor': 2\} shards a single run")]
)
def test_refusals(tiny, tmp_path, fields, sentence):
  with pytest.raises(ValueError, match=sentence):
    train_seeds(tiny(**fields), {seed: tmp_path / str(seed) for seed in SEEDS})


@pytest.mark.slow
def test_learning_rates_together(tiny, alone, tmp_path):
  """Each is the run that it would be alone, and they differ."""
  seed = SEEDS[0]
  configs = {
    rate: tiny(**DROPPED, **{'optimizer.learning_rate': rate})
    for rate in (tiny().optimizer.learning_rate, 0.03)
  }
  train_ensemble([RunDir.from_config(config, seed, tmp_path / f'{rate}') for rate, config in configs.items()])
  same, other = (tmp_path / f'{rate}' for rate in configs)
  np.testing.assert_allclose(values(same, 'loss'), values(alone[seed], 'loss'), rtol=2e-5)
  assert (same / 'config.json').read_text() == (alone[seed] / 'config.json').read_text()
  np.testing.assert_allclose(
    np.array(values(other, 'learning_rate')) / values(same, 'learning_rate'),
    0.03 / tiny().optimizer.learning_rate,
    rtol=1e-5,
  )
  assert (
    values(other, 'batch') == values(same, 'batch') and values(other, 'loss')[-1] != values(same, 'loss')[-1]
  )
  assert runs.load(other).config.optimizer.learning_rate == 0.03


def test_what_is_of_another_shape_is_refused(tiny, tmp_path):
  with pytest.raises(
    ValueError,
    match='config.model.layers is 2 in one run and 3 in another, and the runs of an '
    'ensemble may differ only in seed and optimizer.learning_rate',
  ):
    train_ensemble(
      [
        RunDir.from_config(tiny(), 0, tmp_path / 'a'),
        RunDir.from_config(tiny(**{'model.layers': 3}), 0, tmp_path / 'b'),
      ]
    )
