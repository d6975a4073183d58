"""A few training steps on random tokens, on any mesh."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tfm.config.assemble import Experiment
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.training import state as states
from tfm.training.loss_scale import LossScale
from tfm.training.step import train_step


VOCAB, ROWS, LENGTH = 50, 8, 32


def batch(rows=ROWS, length=LENGTH, seed=0):
  """Random tokens; rows end in different amounts of padding, one of them nearly all."""
  rng = np.random.default_rng(seed)
  tokens = rng.integers(0, VOCAB, (rows, length + 1)).astype(np.int32)
  stored = np.arange(length)[None] < rng.integers(1, length + 1, rows)[:, None]
  return dict(
    inputs=tokens[:, :-1],
    targets=tokens[:, 1:],
    segments=stored.astype(np.int32),
    positions=np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length)).copy(),
  )


def take_steps(config, steps=1, mesh=None, batch=batch, scale=None):
  """(losses, final state) of a few steps on one batch after another."""
  objective, (optimizer, rate) = Experiment(config).objective, Experiment(config).build_optimizer()
  model = Experiment(config).build_model(VOCAB)
  mesh = meshes.make(mesh) if mesh else meshes.make({}, jax.devices()[:1])
  rules = sharding.parse_rules(config.rules)
  make = states.init(model, optimizer, (ROWS, LENGTH), config.model.dtype == 'float16')
  where = states.state_shardings(states.abstract_state(make), mesh, rules)
  (state,) = states.init_states(make, [config.seed], where, mesh, rules)
  if scale:
    state = state.replace(loss_scale=LossScale(jnp.float32(scale), jnp.int32(0)))
  history = []
  with sharding.context(mesh, rules):
    step = jax.jit(
      train_step(model, objective, optimizer, rate, config.training.gradient_accumulation),
      out_shardings=(where, None),
    )
    for i in range(steps):
      placed = jax.device_put(batch(seed=i), sharding.batch_sharding(mesh, rules))
      state, metrics = step(state, placed)
      history.append({k: float(v) for k, v in metrics.items()})
  return history, state


def initial(model):
  return nn.unbox(jax.jit(lambda key: states.init_params(model, key, ROWS, LENGTH))(jax.random.key(0)))


def assert_trees_close(a, b, rtol, atol):
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), jax.device_get(a), jax.device_get(b)
  )


def sgd(tiny, **fields):
  """Plain gradient descent shows the gradient itself; Adam would hide its scale."""
  return tiny(
    **{
      'optimizer.name': 'sgd',
      'optimizer.learning_rate': 1.0,
      'optimizer.clip': 0.0,
      'optimizer.schedule': 'constant',
      'optimizer.warmup': 0,
      **fields,
    }
  )
