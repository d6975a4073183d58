"""What models hand through a pipeline: dropout, memories, patterns, prefixes, keys of other layers."""

import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import pairs
from tests.parallel.test_pipeline_parallelism import DEEP, placed
from tests.training.steps import LENGTH, VOCAB, assert_trees_close
from tfm.config.assemble import Experiment
from tfm.config.resolve import resolve_config
from tfm.config.schema import BLOCK_FIELDS, default_config, optional
from tfm.mixers.protocol import Context
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding


# Of the sum of sines of 100 times all logits of 8 rows: a logit is rounded by some 1e-7, and errors add up as
# the root of their number. The sum itself may be near zero.
SUM_ROUNDING = 100 * 1e-7 * (8 * LENGTH * VOCAB) ** 0.5


class Drops(nn.Module):
  """Adds, in the decimal digit of the layer, 0 or 2 to each number."""

  @nn.compact
  def __call__(self, x, memory, context, cache):
    number = self.param('number', lambda key: jnp.float32(0))
    return x + nn.Dropout(0.5, deterministic=False)(jnp.ones_like(x)) * number, None


@pytest.mark.slow
def test_each_layer_and_microbatch_drops_for_itself():
  from tfm.models.stack import Stack

  rules = sharding.parse_rules(default_config().rules)
  stack, x = Stack((Drops,), 4, True, 'none', 4, 2), jnp.zeros((8, 40, 10))
  params = {'layers': {'block_0': {'number': 10.0 ** jnp.arange(4)}}}
  with sharding.context(meshes.make(dict(stage=2, data=2), jax.devices()[:4]), rules):
    result, _ = jax.jit(
      lambda p, x: stack.apply(
        {'params': p},
        x,
        None,
        Context.contiguous(x[..., 0], train=True),
        None,
        rngs={'dropout': jax.random.key(0)},
      )
    )(params, x)
  digits = np.asarray(result).astype(int)
  # Microbatch i has rows i and i + 4; two rows of one microbatch draw from one key, at other places.
  drawn = [digits[row] // 10**layer % 10 for layer in range(4) for row in range(8)]
  assert all(set(np.unique(d)) == {0, 2} for d in drawn)
  assert all(abs((a == b).mean() - 0.5) < 0.12 for a, b in itertools.combinations(drawn, 2))


@pytest.mark.slow
def test_a_memory_travels_with_its_microbatch():
  """Rows of unequal length on both sides; gradients of the encoder too, through its own pipeline."""
  model, params = pairs.make_model(layers=4, encoder=dict(layers=2), position='t5')
  draw = np.random.default_rng(0)
  tokens, source = draw.integers(0, pairs.VOCAB, (2, 8, 12))
  lengths = draw.integers(1, 13, (2, 8, 1))
  here, there = (pairs.context(np.arange(12) < n) for n in lengths)

  def loss(params):
    y, _ = model.apply({'params': params}, tokens, here, None, source, there)
    return (jnp.sin(y) * (here.segments > 0)[..., None]).sum()

  run = jax.value_and_grad(loss)
  target, expected = jax.jit(run)(params)
  boxed = jax.eval_shape(model.init, jax.random.key(0), *model.example(1, 4))['params']
  mesh, rules = meshes.make(dict(stage=2, data=2, tensor=2)), sharding.parse_rules(pairs.config().rules)
  with sharding.context(mesh, rules):
    got, grads = jax.jit(run)(jax.device_put(params, sharding.named_shardings(boxed, mesh, rules)))
  np.testing.assert_allclose(got, target, rtol=1e-5)
  size = max(float(np.abs(x).max()) for x in jax.tree.leaves(expected))
  assert_trees_close(grads, expected, rtol=1e-4, atol=1e-5 * size)


@pytest.mark.slow
def test_patterns_prefixes_and_packed_rows(tiny):
  """Two turns of a pattern of two, in documents side by side that have prefixes."""
  config = tiny(**DEEP, objective='prefix_lm', **{'data.packing': 'first_fit'})
  config.model.blocks = dict(
    near=optional(BLOCK_FIELDS) | dict(mask='causal & window(3)'),
    far=optional(BLOCK_FIELDS) | dict(mask='prefix | causal', position='none'),
  )
  config.model.pattern = ('near', 'far')
  config = resolve_config(config)
  model = Experiment(config).build_model(VOCAB, causal=False)
  params, cut, on = placed(model, config, dict(stage=2, data=2))
  draw = np.random.default_rng(0)
  tokens, ends = draw.integers(0, VOCAB, (8, LENGTH)), draw.integers(4, LENGTH - 4, (8, 1))
  i = np.arange(LENGTH)
  context = Context(
    jnp.asarray(np.where(i < ends, i, i - ends)),
    jnp.asarray(1 + (i >= ends)),
    prefix=jnp.asarray(np.where(i < ends, 2, draw.integers(0, 4, (8, 1)))),
  )

  def loss(params):
    return jnp.sin(100 * model.apply({'params': params}, tokens, context)[0]).sum()

  target, expected = jax.jit(jax.value_and_grad(loss))(params)
  with on():
    got, grads = jax.jit(jax.value_and_grad(loss))(cut)
  np.testing.assert_allclose(got, target, atol=SUM_ROUNDING)
  size = max(float(np.abs(x).max()) for x in jax.tree.leaves(expected))
  assert_trees_close(grads, expected, rtol=1e-4, atol=1e-5 * size)


@pytest.mark.slow
def test_keys_of_other_layers(tiny):
  """Two turns of a block with keys and values and one without."""
  config = tiny(**DEEP)
  config.model.blocks = dict(own=optional(BLOCK_FIELDS), other=optional(BLOCK_FIELDS) | dict(own_keys=False))
  config.model.pattern = ('own', 'other')
  model = Experiment(resolve_config(config)).build_model(VOCAB)
  params, cut, on = placed(model, config, dict(stage=2, data=2))
  tokens = np.random.default_rng(0).integers(0, VOCAB, (8, LENGTH))

  def loss(params):
    return jnp.sin(100 * model.apply({'params': params}, tokens, Context.contiguous(tokens))[0]).sum()

  target, expected = jax.jit(jax.value_and_grad(loss))(params)
  with on():
    got, grads = jax.jit(jax.value_and_grad(loss))(cut)
  np.testing.assert_allclose(got, target, atol=SUM_ROUNDING)
  size = max(float(np.abs(x).max()) for x in jax.tree.leaves(expected))
  assert_trees_close(grads, expected, rtol=1e-4, atol=1e-5 * size)
