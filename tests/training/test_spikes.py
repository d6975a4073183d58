"""A step with a far larger gradient than usual is skipped and logged, and skipped again after a resume."""

import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.config.assemble import Experiment
from tfm.runs.train import train
from tfm.training import checkpoint, metrics
from tfm.training import state as states
from tfm.training.loss_scale import LossScale
from tfm.training.spikes import LEARNING, Spikes
from tfm.training.step import train_step


def after(norms, factor=3.0):
  """([whether each was a spike], what is remembered)."""
  spikes, found = Spikes.initial(), []
  for norm in norms:
    spike, spikes = spikes.update(jnp.float32(norm), factor)
    found.append(bool(spike))
  return found, spikes


def test_the_mean_is_the_mean():
  _, spikes = after([2.0] * 7)
  assert spikes.mean_norm() == pytest.approx(2.0, rel=1e-5) and spikes.seen == 7
  norms = [1.0, 3.0, 2.0]
  weights = np.array([0.98**2, 0.98, 1.0])
  assert after(norms)[1].mean_norm() == pytest.approx((weights * norms).sum() / weights.sum(), rel=1e-5)


def test_what_is_above_the_factor_is_a_spike_and_counts_as_what_may_pass():
  found, spikes = after([1.0] * LEARNING + [2.9, 4.0, 1.0])
  assert found == [False] * (LEARNING + 1) + [True, False] and spikes.skipped == 1
  assert spikes.mean_norm() < 1.3
  assert not any(after([1.0] * (LEARNING - 1) + [100.0])[0])  # nothing is known yet


def test_a_norm_of_just_the_factor_is_no_spike():
  _, spikes = after([1.0] * LEARNING)
  threshold = 3.0 * spikes.mean_norm()
  above = np.nextafter(threshold, np.inf)
  assert not spikes.update(threshold, 3.0)[0] and spikes.update(above, 3.0)[0]


def test_a_norm_that_stays_high_becomes_the_usual_one():
  found, _ = after([1.0] * LEARNING + [10.0] * 200)
  assert found[LEARNING] and not found[-1] and sum(found) < 60


@pytest.mark.slow
@pytest.mark.parametrize('dtype', ['float32', pytest.param('float16', marks=pytest.mark.slow)])
def test_a_skipped_step_changes_nothing_but_counts(tiny, dtype):
  config = tiny(**{'training.skip_spikes': 3.0, 'model.dtype': dtype})
  model, objective, (optimizer, rate) = (
    Experiment(config).build_model(50),
    Experiment(config).objective,
    Experiment(config).build_optimizer(),
  )
  state = nn.unbox(states.init(model, optimizer, (4, 8), dtype == 'float16', spikes=True)(jax.random.key(0)))
  if state.loss_scale:  # so small that nothing overflows
    state = state.replace(loss_scale=LossScale(jnp.float32(1), jnp.int32(0)))
  tokens = np.random.default_rng(0).integers(0, 50, (4, 9)).astype(np.int32)
  batch = dict(
    inputs=tokens[:, :-1],
    targets=tokens[:, 1:],
    segments=np.ones((4, 8), np.int32),
    positions=np.broadcast_to(np.arange(8, dtype=np.int32), (4, 8)).copy(),
  )
  step = jax.jit(train_step(model, objective, optimizer, rate, 1, 3.0))
  taken, reported = step(state, batch)
  assert reported['spike'] == 0 and taken.spikes.seen == 1
  # As if the norm had been a thousandth so far.
  usual = reported['gradient_norm'] / 1000
  state = state.replace(
    step=jnp.int32(50), spikes=Spikes(usual * (1 - 0.98**50), jnp.int32(50), jnp.int32(2))
  )
  left, reported = step(state, batch)
  assert reported['spike'] == 1 and reported['spikes'] == 3 and left.spikes.skipped == 3 and left.step == 51
  for same in ('params', 'opt_state', 'key'):
    jax.tree.map(np.testing.assert_array_equal, getattr(left, same), getattr(state, same))


@pytest.mark.slow
def test_a_run_tells_what_it_skipped_and_resumes_bit_for_bit(tiny, tmp_path, caplog):
  """With a factor so low that ordinary batches exceed it, and so slow that the norm does not fall."""

  def run(folder, steps):
    train(
      tiny(
        **{
          'training.skip_spikes': 1.01,
          'optimizer.learning_rate': 1e-5,
          'training.steps': steps,
          'training.evaluate_every': 12,
          'optimizer.schedule': 'constant',
          'training.log_every': 100,
        }
      ),
      folder,
    )
    with_closed = checkpoint.Checkpoints(folder)
    tree = with_closed.manager.restore(with_closed.find_step('last'))
    with_closed.close()
    return (
      tree['params'],
      tree['rest'],
      [r['step'] for r in metrics.read(pathlib.Path(folder) / 'metrics.jsonl') if r.get('spike')],
    )

  caplog.set_level('INFO', logger='tfm')
  params, rest, skipped = run(tmp_path / 'whole', 36)
  run(tmp_path / 'parts', 24)
  again, rest_again, skipped_again = run(tmp_path / 'parts', 36)
  assert (
    skipped == skipped_again
    and any(LEARNING < step <= 24 for step in skipped)
    and any(step > 24 for step in skipped)
  )
  assert rest['spikes']['skipped'] == len(skipped)
  jax.tree.map(np.testing.assert_array_equal, (params, rest), (again, rest_again))
  assert f'step {skipped[0]} is skipped: the norm of its gradient' in caplog.text
