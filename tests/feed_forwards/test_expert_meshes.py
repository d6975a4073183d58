"""Mixture of experts on meshes: what travels between devices, and gradients as on one."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.feed_forwards.test_mixture_of_experts import DRAW
from tfm.analysis.collectives import find_collectives
from tfm.config.schema import default_config
from tfm.feed_forwards.mixture_of_experts import MixtureOfExperts
from tfm.layers.initializer import normal
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding


@pytest.mark.parametrize('settings', [dict(), dict(capacity=1.0)], ids=['dropless', 'capacity'])
@pytest.mark.slow
def test_data_parallel_exchanges_gradients_only(settings):
  """With rows sharded over eight devices, only the gradients of the kernels are summed over devices."""
  module = MixtureOfExperts(
    16, 16, False, normal(1.0), normal(1.0), jnp.float32, experts=4, shared=1, **settings
  )
  x, valid = jnp.ones((8, 4, 16)), jnp.ones((8, 4), bool)
  params = nn.unbox(module.init(jax.random.key(0), x, valid))
  mesh, rules = meshes.make(dict(data=8)), sharding.parse_rules(default_config().rules)
  rows = sharding.batch_sharding(mesh, rules)
  with sharding.context(mesh, rules):
    compiled = (
      jax.jit(
        jax.grad(lambda p, x: jnp.sin(module.apply(p, x, valid)).sum(), (0, 1)),
        in_shardings=(None, rows),
        out_shardings=(None, rows),
      )
      .lower(params, x)
      .compile()
    )
  text = compiled.as_text()
  assert 'all-reduce' in text
  assert not any(word in text for word in ('all-gather', 'all-to-all', 'collective-permute'))


def on_mesh(module, x, valid, sizes, rules):
  """(loss and gradients on one device, the same on a mesh, the collectives there)."""
  boxed = module.init(jax.random.key(0), x, valid)
  params = nn.unbox(boxed)

  def loss(params, x):
    return jnp.sin(module.apply(params, x, valid)).sum()

  expected = jax.jit(jax.value_and_grad(loss, (0, 1)))(params, x)
  mesh, rules = meshes.make(sizes), sharding.parse_rules(dict(default_config().rules) | rules)
  shardings = sharding.named_shardings(boxed, mesh, rules)
  divides = len(x) % sharding.batch_sharding(mesh, rules).num_devices == 0
  rows = sharding.batch_sharding(mesh, rules) if divides else sharding.replicated(mesh)
  with sharding.context(mesh, rules):
    step = jax.jit(
      jax.value_and_grad(loss, (0, 1)),
      in_shardings=(shardings, rows),
      out_shardings=(None, (shardings, rows)),
    )
    compiled = step.lower(params, x).compile()
    actual = compiled(jax.device_put(params, shardings), jax.device_put(x, rows))
  return expected, actual, find_collectives(compiled.as_text(), mesh.shape)


def assert_same(actual, expected):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), actual, expected)


@pytest.mark.slow
def test_expert_parallel_exchanges_rows_by_all_to_all():
  """Over the expert axis, dispatched rows and their gradients are sent all-to-all and back; neither rows nor
  expert weights are gathered.
  """
  module = MixtureOfExperts(16, 24, False, normal(1.0), normal(1.0), jnp.float32, experts=8, capacity=1.0)
  x, valid = jnp.asarray(DRAW.standard_normal((8, 4, 16)), jnp.float32), jnp.ones((8, 4), bool)
  expected, actual, collectives = on_mesh(module, x, valid, dict(data=2, expert=4), {})
  assert_same(actual, expected)
  exchanges = [one for one in collectives if one.kind == 'all-to-all']
  assert {one.axes for one in exchanges} == {('expert',)}
  # One row per device: 8 experts with one slot each, 4 bytes per number.
  bytes_per_exchange = 8 // 8 * 8 * 1 * 16 * 4
  assert sum(one.bytes for one in exchanges) == 4 * bytes_per_exchange
  router = 16 * 8 * 4
  assert [one.bytes for one in collectives if one.kind in ('all-gather', 'collective-permute')] == [router]


@pytest.mark.parametrize('sizes', [dict(data=2, expert=4), dict(expert=8)], ids=str)
@pytest.mark.slow
def test_without_capacity_rows_travel_and_expert_weights_stay(sizes):
  """Devices gather rows, choices and weights, and scatter sums; backward likewise. The kernels' gradients are
  summed over other axes only."""
  module = MixtureOfExperts(16, 24, False, normal(0.3), normal(0.3), jnp.float32, experts=8)
  x, valid = jnp.asarray(DRAW.standard_normal((8, 4, 16)), jnp.float32), jnp.ones((8, 4), bool)
  expected, actual, collectives = on_mesh(module, x, valid, sizes, {})
  assert_same(actual, expected)
  tokens = 8 * 4 // sizes.get('data', 1)
  row, choices, router = 16 * 4, 2 * 4, 16 * 8 * 4

  def travel(kind):
    return sum(one.bytes for one in collectives if one.kind == kind and 'expert' in one.axes)

  assert travel('all-gather') == tokens * (2 * row + 2 * choices) + router
  assert travel('reduce-scatter') == tokens * (2 * row + choices)
  assert travel('all-reduce') <= router + 4  # its gradient and the loss
  assert travel('all-to-all') == travel('collective-permute') == 0


@pytest.mark.parametrize(
  'sizes, rules, rows',
  [
    (dict(fsdp=2, expert=2, tensor=2), {}, 8),
    (dict(expert=2, sequence=2, tensor=2), {}, 8),
    (dict(data=2, tensor=4), dict(expert='tensor', mlp=''), 8),
    (dict(fsdp=4, tensor=2), dict(mlp='fsdp tensor', embed=''), 8),  # also over the axes of rows
    (dict(fsdp=2, expert=2, tensor=2), {}, 1),  # rows that the mesh does not divide
  ],
  ids=str,
)
@pytest.mark.slow
def test_without_capacity_every_mesh_gives_the_gradients_of_one_device(sizes, rules, rows):
  """With biases, padding, and any axes of rows, experts, widths and hidden layers."""
  module = MixtureOfExperts(16, 24, True, normal(0.3), normal(0.3), jnp.float32, experts=8)
  x = jnp.asarray(DRAW.standard_normal((rows, 4, 16)), jnp.float32)
  expected, actual, _ = on_mesh(module, x, jnp.asarray(DRAW.random((rows, 4)) > 0.2), sizes, rules)
  assert_same(actual, expected)
