"""The training step of a model of a few numbers, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tfm.layers.load_balance import BALANCE_BIAS
from tfm.training.gradient_transforms import MaskedTransformation, balance_experts
from tfm.training.loss_scale import GROWTH_INTERVAL, LARGEST, LossScale, all_finite
from tfm.training.spikes import LEARNING, Spikes
from tfm.training.state import State
from tfm.training.step import evaluation_step, jitted, train_step


RATE = 0.5


def objective(model, params, batch, key):
  """Σ over tokens of w · x, plus the bias of experts and the frozen number; noise with a key."""
  weights = (batch['segments'] > 0).astype(jnp.float32)
  total = ((params['w'] * batch['x'] + params['frozen']) * weights).sum() + params[BALANCE_BIAS] * 100
  noise = 0 if key is None else jax.random.normal(key)
  return total, dict(loss=total, noise=noise * weights.sum(), tokens=weights.sum())


def take_step(x, segments, accumulation=1, skip_spikes=0.0, **state):
  """(state before, state after, metrics) of SGD at step 7, whose rate is 0.5 at step 0 and 0.25 at step 7."""
  rate = lambda step: RATE / (1 + step / 7)
  sgd = optax.sgd(rate)
  trainable = MaskedTransformation(sgd.init, sgd.update, lambda path: path != 'frozen')
  optimizer = balance_experts(trainable, 0.01)
  params = {'w': jnp.float32(3), 'frozen': jnp.float32(1), BALANCE_BIAS: jnp.float32(2)}
  opt_state = jax.tree.map(lambda count: count + 7, optimizer.init(params))
  key = jax.random.key_data(jax.random.key(0))
  state = State(jnp.int32(7), params, opt_state, key, state.get('loss_scale'), state.get('spikes'))
  batch = dict(x=jnp.asarray(x, jnp.float32), segments=jnp.asarray(segments, jnp.int32))
  after, metrics = jax.jit(train_step(None, objective, optimizer, rate, accumulation, skip_spikes))(
    state, batch
  )
  return state, after, {name: float(value) for name, value in metrics.items()}


X, SEGMENTS = [[1, 2, 4], [8, 16, 32]], [[1, 1, 2], [1, 0, 0]]


@pytest.mark.parametrize('accumulation', [1, 2])
def test_a_step_is_the_mean_over_tokens(accumulation):
  _, after, metrics = take_step(X, SEGMENTS, accumulation)
  gradient = (1 + 2 + 4 + 8) / 4
  assert after.params['w'] == 3 - RATE / 2 * gradient and after.params['frozen'] == 1
  assert after.params[BALANCE_BIAS] == pytest.approx(2 - 0.01) and after.step == 8
  noise = metrics.pop('noise')
  assert noise != 0
  assert metrics == dict(
    loss=(3 * 15 + 4 + accumulation * 200) / 4,
    tokens=4,
    read=4,
    gradient_norm=gradient,  # without frozen parameters and biases of experts
    learning_rate=RATE / 2,
  )


def test_a_batch_without_tokens_changes_nothing_that_follows_a_gradient():
  before, after, metrics = take_step(X, np.zeros((2, 3)))
  assert after.params['w'] == 3 and metrics['tokens'] == metrics['gradient_norm'] == 0
  assert all(np.isfinite(value) for value in metrics.values()) and after.step == 8


def test_a_spike_changes_nothing_but_counts():
  spikes = Spikes(jnp.float32(1e-3), jnp.int32(LEARNING), jnp.int32(2))
  before, after, metrics = take_step(X, SEGMENTS, skip_spikes=3.0, spikes=spikes)
  jax.tree.map(np.testing.assert_array_equal, after.params, before.params)
  jax.tree.map(np.testing.assert_array_equal, after.opt_state, before.opt_state)
  assert (after.step, after.spikes.seen, after.spikes.skipped) == (8, LEARNING + 1, 3)
  assert metrics['spike'] == 1 and metrics['spikes'] == 3
  _, after, metrics = take_step(X, SEGMENTS, skip_spikes=3.0, spikes=spikes.replace(mean=jnp.float32(10)))
  assert after.params['w'] != 3 and (after.spikes.seen, after.spikes.skipped) == (LEARNING + 1, 2)
  assert metrics['spike'] == 0 and after.step == 8


def test_an_overflow_changes_nothing_but_the_scale():
  scale = LossScale(jnp.float32(1024), jnp.int32(5))
  before, after, metrics = take_step(np.multiply(X, 1e36), SEGMENTS, loss_scale=scale)
  jax.tree.map(np.testing.assert_array_equal, after.params, before.params)
  jax.tree.map(np.testing.assert_array_equal, after.opt_state, before.opt_state)
  assert (after.step, after.loss_scale.scale, after.loss_scale.good_steps) == (8, 512, 0)
  assert (metrics['skipped'], metrics['loss_scale'], metrics['gradient_norm']) == (1, 1024, 0)
  _, after, metrics = take_step(X, SEGMENTS, loss_scale=scale)
  assert after.params['w'] == 3 - RATE / 2 * 15 / 4 and after.loss_scale.good_steps == 6
  assert (metrics['skipped'], metrics['loss_scale'], metrics['gradient_norm']) == (0, 1024, 15 / 4)


def test_the_scale_begins_at_a_power_of_two_and_doubles_after_2000_steps():
  """Products with a power of two are exact."""
  first = LossScale.initial()
  assert np.frexp(float(first.scale)) == (0.5, 16) and GROWTH_INTERVAL == 2000
  good = lambda n: jax.lax.fori_loop(0, n, lambda _, scale: scale.update(jnp.array(True)), first)
  assert [float(good(n).scale / first.scale) for n in (1999, 2000, 3999, 4000)] == [1, 2, 2, 4]


def test_the_scale_has_bounds():
  largest = LossScale(jnp.float32(LARGEST), jnp.int32(10**6)).update(jnp.array(True))
  least = LossScale(jnp.float32(1), jnp.int32(5)).update(jnp.array(False))
  assert (largest.scale, least.scale, least.good_steps) == (LARGEST, 1, 0)


def test_all_numbers_of_all_leaves_must_be_finite():
  tree = {'a': jnp.ones(3), 'b': jnp.array([1.0, 2.0])}
  assert all_finite(tree) and not all_finite(tree | {'b': jnp.array([1.0, jnp.inf])})
  assert not all_finite(tree | {'c': jnp.array([jnp.nan])})


def test_a_state_is_donated_and_an_evaluation_has_no_key():
  sums = evaluation_step(None, objective)(
    {'w': 3.0, 'frozen': 1.0, BALANCE_BIAS: 0.0},
    dict(x=jnp.array([[1.0, 2.0]]), segments=jnp.array([[1, 0]])),
  )
  assert {name: float(value) for name, value in sums.items()} == dict(loss=4, noise=0, tokens=1)
  step = jitted(lambda state, batch: (state + batch, batch), None)
  state = jnp.ones(3)
  assert step(state, jnp.ones(3))[0].tolist() == [2] * 3 and state.is_deleted()
