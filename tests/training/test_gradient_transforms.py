"""Which parameters decay, and that clipping and every optimizer follow their formulas."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tfm.optimizers
from tfm import spec
from tfm.config.assemble import Experiment
from tfm.optimizers.protocol import Optimizer
from tfm.runs.train import train
from tfm.training import state as states
from tfm.training.gradient_transforms import balance_experts, layerwise_decay, optimizer, path_name


NO_DECAY = r'bias|scale|table'


def method(text):
  return spec.build(text, tfm.optimizers, Optimizer)


def params(tiny):
  config = tiny(**{'model.bias': True, 'model.position': 'learned', 'model.tie_embeddings': False})
  model = Experiment(config).build_model(32)
  return nn.unbox(jax.jit(lambda key: states.init_params(model, key, 1, 32))(jax.random.key(0)))


@pytest.mark.slow
@pytest.mark.parametrize(
  'text',
  [
    'adamw(weight_decay=0.5)',
    pytest.param('lion(weight_decay=0.5)', marks=pytest.mark.slow),
    pytest.param('adafactor(weight_decay=0.5)', marks=pytest.mark.slow),
  ],
)
def test_decay_spares_biases_norms_and_tables(tiny, text):
  """With a zero gradient, decay is all that moves a parameter."""
  tree = jax.tree.map(np.ones_like, params(tiny))
  transformation = optimizer(method(text), lambda count: 0.1, 0.0, NO_DECAY)
  updates, _ = jax.jit(
    lambda tree: transformation.update(jax.tree.map(jnp.zeros_like, tree), transformation.init(tree), tree)
  )(tree)
  moved = {path_name(path): bool(jnp.any(x != 0)) for path, x in jax.tree_util.tree_leaves_with_path(updates)}
  assert moved == {name: name.endswith('kernel') for name in moved}
  assert any(moved.values()) and not all(moved.values())


def test_decay_and_frozen_parameters_by_path():
  """With a zero gradient, as above; a frozen parameter has an update, which is zero, and no state."""
  tree = {'first': {'kernel': jnp.ones(2), 'bias': jnp.ones(2)}, 'second': {'kernel': jnp.ones(3)}}
  transformation = optimizer(method('adamw(weight_decay=0.5)'), lambda _: 0.1, 0.0, NO_DECAY, '^second')
  zero, state = jax.tree.map(jnp.zeros_like, tree), transformation.init(tree)
  updates, _ = transformation.update(zero, state, tree)
  np.testing.assert_allclose(updates['first']['kernel'], [-0.05] * 2)
  assert not updates['first']['bias'].any() and updates['second']['kernel'].tolist() == [0] * 3
  assert {x.shape for x in jax.tree.leaves(state)} == {(), (2,)}


def test_adamw_is_the_published_update():
  """Three steps by hand: Loshchilov & Hutter 2019, algorithm 2."""
  b1, b2, eps, decay, rate = 0.9, 0.95, 1e-8, 0.1, 0.01
  transformation = optimizer(method('adamw'), lambda count: rate, 0.0, NO_DECAY)
  tree = {'kernel': jnp.array([1.0, -2.0])}
  state, x, m, v = transformation.init(tree), np.array([1.0, -2.0]), 0, 0
  for t, g in enumerate(([0.1, 0.2], [-0.3, 0.5], [0.0, 1.0]), 1):
    g = np.array(g)
    updates, state = transformation.update({'kernel': jnp.array(g, jnp.float32)}, state, tree)
    tree = jax.tree.map(jnp.add, tree, updates)
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    x = x - rate * (m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps) + decay * x)
    np.testing.assert_allclose(tree['kernel'], x, rtol=1e-5)


def test_clipping_bounds_the_global_norm():
  transformation = optimizer(method('sgd'), lambda count: 1.0, 0.5, NO_DECAY)
  tree = {'a': jnp.zeros(2), 'b': jnp.zeros(1)}
  updates, _ = transformation.update(
    {'a': jnp.array([3.0, 0.0]), 'b': jnp.array([4.0])}, transformation.init(tree), tree
  )
  np.testing.assert_allclose(updates['a'], [-0.3, 0], rtol=1e-6)
  np.testing.assert_allclose(updates['b'], [-0.4], rtol=1e-6)


@pytest.mark.parametrize('frozen', ['', 'first', 'balance_bias'])
def test_biases_of_experts_move_by_a_sign_and_touch_nothing_else(frozen):
  """Clipping to 1 and a decay of 10 % would show in the kernel, and in the bias."""
  others = optimizer(method('adamw(weight_decay=0.1)'), lambda count: 0.5, 1.0, 'none', frozen)
  transformation = balance_experts(others, 0.01)
  kernel, bias = {'kernel': jnp.array([1.0, -2.0])}, {'balance_bias': jnp.array([1.0, 2.0, 3.0])}
  params = {'first': bias, 'second': bias, 'third': kernel}
  grads = {'first': {'balance_bias': jnp.array([-700.0, 0.0, 1e-3])}} | {
    'second': {'balance_bias': jnp.array([1.0, 1.0, -2.0])},
    'third': {'kernel': jnp.array([0.3, 0.4])},
  }
  updates, state = transformation.update(grads, transformation.init(params), params)
  alone, _ = others.update({'third': grads['third']}, others.init({'third': kernel}), {'third': kernel})
  np.testing.assert_array_equal(updates['third']['kernel'], alone['third']['kernel'])
  expected = {'first': np.array([0.01, 0, -0.01]), 'second': np.array([-0.01, -0.01, 0.01])}
  for name, move in expected.items():
    move = 0 * move if frozen and frozen in f'{name}/balance_bias' else move
    np.testing.assert_allclose(updates[name]['balance_bias'], move)
  assert {x.shape for x in jax.tree.leaves(state)} == {(), (2,)}  # no moments of biases
  follows = transformation.follows_gradient
  assert not follows('stack/block_0/balance_bias') and follows('stack/balance_bias/kernel')


@pytest.mark.parametrize('text', spec.variant_names(tfm.optimizers))
def test_every_optimizer_goes_downhill(text):
  transformation = optimizer(method(text), lambda count: 0.05, 1.0, NO_DECAY)
  tree = {'kernel': jnp.array([[1.0, -1.0], [2.0, 0.5]])}
  state = transformation.init(tree)

  def loss(tree):
    return jnp.sum(tree['kernel'] ** 2)

  before = loss(tree)
  for _ in range(20):
    updates, state = transformation.update(jax.grad(loss)(tree), state, tree)
    tree = jax.tree.map(jnp.add, tree, updates)
  assert loss(tree) < 0.7 * before


@pytest.mark.slow
def test_what_is_frozen_stays_and_costs_nothing(tiny):
  tree = params(tiny)
  transformation = optimizer(
    method('adamw(weight_decay=0.5)'), lambda count: 0.1, 0.0, NO_DECAY, frozen='^(?!norm|stack.*out)'
  )
  state, ones = transformation.init(tree), jax.tree.map(jnp.ones_like, tree)
  updates, state = transformation.update(ones, state, tree)
  moved = {path_name(path): bool(jnp.any(x != 0)) for path, x in jax.tree_util.tree_leaves_with_path(updates)}
  assert moved == {name: name.startswith('norm') or '/out/' in name for name in moved}
  assert any(moved.values()) and not all(moved.values())
  trained = sum(
    x.size
    for path, x in jax.tree_util.tree_leaves_with_path(tree)
    if transformation.is_trainable(path_name(path))
  )
  assert sum(x.size for x in jax.tree.leaves(state)) <= 2 * trained + 2  # two moments and counters
  # It is what the trained part alone would be, clipped by its own norm.
  part = {'norm': tree['norm']}
  clipped, alone = (
    optimizer(method('sgd'), lambda count: 1.0, 0.5, NO_DECAY, frozen) for frozen in ('^(?!norm)', '')
  )
  found, _ = clipped.update(ones, clipped.init(tree), tree)
  expected, _ = alone.update({'norm': ones['norm']}, alone.init(part), part)
  jax.tree.map(np.testing.assert_array_equal, found['norm'], expected['norm'])


def test_lower_layers_learn_slower():
  """The factor of each parameter, by hand."""
  factor = layerwise_decay(0.5, 5, 2, 3, 1)
  shape = jnp.zeros((2, 3, 4))  # two turns of two blocks, and one is left
  np.testing.assert_allclose(factor('stack/layers/block_0/mixer/q/kernel', shape)[:, 0, 0], [0.5**5, 0.5**3])
  np.testing.assert_allclose(factor('stack/layers/block_1/mixer/q/kernel', shape)[:, 0, 0], [0.5**4, 0.5**2])
  for path, expected in {
    'stack/layers_1/block_0/norm/scale': 0.5**3,
    'stack/layers_1/block_1/norm/scale': 0.5**2,
    'stack/rest/block_0/norm/scale': 0.5,
    'embedding/table': 0.5**6,
    'position_0/table': 0.5**6,
    'norm/scale': 1,
    'classification/classes/kernel': 1,
    'output/kernel': 1,
    'encoder/stack/layers_2/block_0/norm/scale': 0.5,
    'encoder/position_0/table': 0.5**4,
    'encoder/norm/scale': 1,
  }.items():
    assert factor(path, jnp.zeros(3)) == expected, path
  rest = layerwise_decay(0.5, 5, 3)  # two of five blocks are left
  assert [rest(f'stack/rest/block_{i}/norm/scale', jnp.zeros(3)) for i in (0, 1)] == [0.5**2, 0.5]
  transformation = optimizer(method('sgd'), lambda count: 1.0, 0.0, NO_DECAY, factors=[factor])
  tree = {'embedding': {'table': jnp.ones(2)}, 'norm': {'scale': jnp.ones(2, jnp.bfloat16)}}
  tree['stack'] = {'layers': {'block_0': {'kernel': jnp.ones((2, 1))}}}
  updates, _ = transformation.update(tree, transformation.init(tree), tree)
  assert updates['embedding']['table'][0] == -(0.5**6) and updates['norm']['scale'][0] == -1
  assert updates['norm']['scale'].dtype == jnp.bfloat16
  np.testing.assert_allclose(updates['stack']['layers']['block_0']['kernel'][:, 0], [-(0.5**5), -(0.5**3)])


@pytest.mark.parametrize(
  'fields, sentence',
  [
    (dict(frozen='embeding'), "frozen='embeding' matches no parameter; .*did you mean 'embedding'"),
    (dict(no_decay='scalle'), "no_decay='scalle' matches no parameter; .*did you mean 'scale'"),
    (dict(frozen='.'), "frozen='.' matches every parameter, so nothing would be trained"),
  ],
)
def test_patterns_that_select_nothing_are_rejected_before_compiling(tiny, tmp_path, fields, sentence):
  config = tiny(**{f'optimizer.{name}': value for name, value in fields.items()})
  with pytest.raises(ValueError, match=sentence):
    train(config, str(tmp_path / 'run'))
