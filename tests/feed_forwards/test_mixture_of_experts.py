"""Mixture of experts: formulas token by token, properties of its plans."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tfm.feed_forwards
from tests.reference import layers
from tests.reference import mixture_of_experts as reference
from tfm import spec
from tfm.feed_forwards._expert_slots import assign_slots
from tfm.feed_forwards.mixture_of_experts import MixtureOfExperts
from tfm.feed_forwards.protocol import FeedForward, default_hidden
from tfm.feed_forwards.swiglu import SwiGLU
from tfm.layers.initializer import lecun_normal, normal


B, T, D, F = 3, 11, 8, 6
DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((B, T, D))
VALID = DRAW.random((B, T)) > 0.3


def make_layer(dtype=jnp.float32, bias=True, initializer=normal(1.0), hidden=F, **settings):
  return MixtureOfExperts(D, hidden, bias, initializer, initializer, dtype, **settings)


def draw_params(module, x=X, valid=VALID):
  shapes = nn.unbox(jax.eval_shape(module.init, jax.random.key(0), jnp.asarray(x), jnp.asarray(valid)))
  assert set(shapes) == {'params'}  # losses and metrics are no variables of the layer
  draw = np.random.default_rng(1)
  return jax.tree.map(lambda p: draw.standard_normal(p.shape), shapes['params'])


def run(module, params, x=X, valid=VALID, **kwargs):
  params = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), params)
  apply = jax.jit(lambda params, x: module.apply({'params': params}, x, jnp.asarray(valid), **kwargs))
  return apply(params, jnp.asarray(x, jnp.float32))


def projections(params, i=...):
  """(kernel, bias) of up, gate and down of one expert; without `i` of an MLP."""
  return {
    name: tuple(p.get(part, np.zeros(1))[i] for part in ('kernel', 'bias'))
    for name, p in params.items()
    if name in ('up', 'gate', 'down')
  }


def require_same_gradients(module, dense, params):
  """Fails where the gradients of a layer differ from those of `dense`, of parameters and inputs."""

  def gradients(f):
    gradient = jax.grad(lambda params, x: jnp.sin(f(params, x)).sum(), argnums=(0, 1))
    return jax.jit(gradient)(params, jnp.asarray(X, jnp.float32))

  ours = gradients(lambda params, x: module.apply({'params': params}, x, jnp.asarray(VALID)))
  theirs = gradients(dense)
  for (path, a), b in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(theirs), strict=True):
    size = np.abs(b).max()
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * size, err_msg=jax.tree_util.keystr(path))
    assert size > 0


slow = lambda settings: pytest.param(settings, marks=pytest.mark.slow)
SETTINGS = [
  dict(),
  dict(top_k=1, normalize=False),
  dict(top_k=3, normalize=False, scale=2.5),
  dict(experts=1, top_k=1),
  slow(dict(top_k=4)),
  dict(experts=40, top_k=5),
  slow(dict(capacity=1.0)),
  slow(dict(top_k=1, normalize=False, capacity=0.7)),
  dict(top_k=3, capacity=0.5),
  dict(capacity=1e-3),
  dict(experts=40, top_k=5, capacity=1.25),
  dict(capacity=100.0),
  slow(dict(gate='sigmoid')),
  dict(gate='sigmoid', top_k=1, normalize=False, capacity=0.7),
]


@pytest.mark.parametrize('settings', SETTINGS, ids=str)
def test_equals_the_formula(settings):
  settings = dict(experts=4) | settings
  module = make_layer(**settings)
  params = draw_params(module)
  rule = module.top_k, module.normalize, module.capacity, None, module.gate
  g = reference.weights(X, VALID, params['router']['kernel'], *rule)
  y = reference.mixture(X, g, lambda i, x: layers.feed_forward('swiglu', x, **projections(params, i)))
  np.testing.assert_allclose(run(module, params), module.scale * y, rtol=2e-5, atol=2e-5 * np.abs(y).max())


@pytest.mark.parametrize(
  'settings',
  [
    dict(),
    slow(dict(top_k=3, normalize=False)),
    dict(capacity=0.8),
    dict(experts=2, top_k=1, normalize=False),
  ],
  ids=str,
)
def test_gradients_equal_those_of_the_dense_mixture(settings):
  """The dense mixture computes every expert for every token and sums the weighted outputs, unsorted."""
  settings = dict(experts=4) | settings
  module = make_layer(activation='gelu', **settings)
  params = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), draw_params(module))
  router = np.asarray(params['router']['kernel'], np.float64)
  g = reference.weights(X, VALID, router, module.top_k, module.normalize, module.capacity)
  free = reference.weights(X, np.full_like(VALID, True), router, module.top_k)

  def dense(params, x):
    r = x @ params['router']['kernel']
    total = jax.nn.logsumexp(jnp.where(free > 0, r, -jnp.inf) if module.normalize else r, -1, keepdims=True)
    weights = jnp.where(g > 0, jnp.exp(r - total), 0)
    up, down = params['up'], params['down']
    hidden = jnp.einsum('btd,edf->btef', x, up['kernel']) + up['bias'][None, None]
    out = jnp.einsum('btef,efd->bted', jax.nn.gelu(hidden, approximate=False), down['kernel'])
    return ((out + down['bias'][None, None]) * weights[..., None]).sum(2)

  require_same_gradients(module, dense, params)


def test_first_choices_have_priority_over_second_choices():
  """Two experts of capacity 2: the third token's first choice precedes the first token's second choice."""
  module = MixtureOfExperts(
    2, 2, False, normal(1.0), normal(1.0), jnp.float32, experts=2, capacity=0.5, activation='relu'
  )
  x = np.array([[[2.0, 1.0], [2.0, 1.0], [2.0, 1.0], [1.0, 2.0]]])  # prefer 0, 0, 0, 1
  params = dict(
    router=dict(kernel=np.eye(2)),
    up=dict(kernel=np.stack([np.eye(2)] * 2)),
    down=dict(kernel=np.stack([np.eye(2), 10 * np.eye(2)])),
  )
  y = run(module, params, x, np.ones((1, 4), bool))
  first, second = 1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))
  # The capacity is ⌈0.5 · 2 · 4 / 2⌉ = 2: expert 0 has tokens 0 and 1, expert 1 token 3 and then token 0.
  share = [first + 10 * second, first, 0, 10 * first]
  np.testing.assert_allclose(y[0], np.array(share)[:, None] * x[0], rtol=1e-5)


@pytest.mark.parametrize('capacity', [None, 1.0])
def test_padding_uses_no_capacity_and_gets_no_expert_output(capacity):
  module = make_layer(experts=4, capacity=capacity, shared=1)
  params = draw_params(module)
  y = run(module, params)
  noise = np.where(VALID[..., None], X, 100 * DRAW.standard_normal(X.shape))
  with_noise = run(module, params, noise)
  np.testing.assert_array_equal(y[VALID], with_noise[VALID])
  shared_only = run(SwiGLU(D, F, True, normal(), normal(), jnp.float32), params['shared'])
  np.testing.assert_array_equal(y[~VALID], shared_only[~VALID])
  assert np.isfinite(run(module, params, valid=np.zeros_like(VALID))).all()


@pytest.mark.parametrize('settings', [dict(), dict(capacity=1.0)], ids=str)
def test_shared_experts_add_one_mlp_to_the_mixture(settings):
  routed, both = make_layer(experts=4, **settings), make_layer(experts=4, shared=2, scale=3.0, **settings)
  params = draw_params(both)
  assert params['shared']['up']['kernel'].shape == (D, 2 * F)
  y = 3 * run(routed, {name: p for name, p in params.items() if name != 'shared'})
  y = y + layers.feed_forward('swiglu', X, **projections(params['shared']))
  np.testing.assert_allclose(run(both, params), y, rtol=2e-5, atol=2e-5 * np.abs(y).max())


@pytest.mark.parametrize('k, gate', [(1, 'softmax'), (2, 'softmax'), (4, 'softmax'), (2, 'sigmoid')])
def test_losses(k, gate):
  module = make_layer(experts=4, top_k=k, normalize=k > 1, balance=0.5, z_loss=0.25, capacity=0.5, gate=gate)
  params = draw_params(module)
  balance, z = reference.losses(X, VALID, params['router']['kernel'], k, gate)
  _, variables = run(module, params, mutable=['losses', 'metrics'])
  assert variables['losses']['balance'] == pytest.approx((0.5 * balance,), rel=1e-5)
  assert variables['losses']['z_loss'] == pytest.approx((0.25 * z,), rel=1e-5)
  # Choices beyond the capacity still count in the loss, and as dropped.
  g = reference.weights(X, VALID, params['router']['kernel'], k, capacity=0.5)
  uncapped = reference.weights(X, VALID, params['router']['kernel'], k)
  assert variables['metrics']['dropped'] == pytest.approx((1 - (g > 0).sum() / (k * VALID.sum()),), abs=1e-6)
  load = (uncapped > 0).sum((0, 1)).max() * 4 / (k * VALID.sum())
  assert variables['metrics']['load'] == pytest.approx((load,), rel=1e-6)


@pytest.mark.parametrize(
  'settings', [dict(), dict(normalize=False), dict(capacity=0.7), dict(gate='sigmoid')], ids=str
)
def test_a_bias_chooses_experts_and_does_not_weigh_them(settings):
  module = make_layer(experts=4, balance_bias=True, **settings)
  params = draw_params(module)
  params['balance_bias'] = np.array([0.5, -0.3, 0.0, 0.2])
  router = params['router']['kernel']
  g, unbiased = (
    reference.weights(X, VALID, router, 2, module.normalize, module.capacity, bias, module.gate)
    for bias in (params['balance_bias'], None)
  )
  assert ((g > 0) != (unbiased > 0)).any()
  y = reference.mixture(X, g, lambda i, x: layers.feed_forward('swiglu', x, **projections(params, i)))
  np.testing.assert_allclose(run(module, params), y, rtol=2e-5, atol=2e-5 * np.abs(y).max())


@pytest.mark.parametrize('factor', [1.0, -0.25, 0.0])
def test_the_gradient_of_a_bias_is_the_excess_of_the_load(factor):
  """Whatever the factor on the loss; padding is no load, and nothing else follows from it."""
  module = make_layer(experts=4, balance=0.0, balance_bias=True)
  drawn = draw_params(module)
  params = jax.tree.map(jnp.asarray, drawn)

  def loss(params):
    _, variables = run(module, params, mutable=['losses'])
    [zero] = variables['losses']['balance_bias']
    return factor * zero

  value, gradient = jax.value_and_grad(loss)(params)
  chosen = reference.weights(X, VALID, drawn['router']['kernel'], 2, bias=drawn['balance_bias']) > 0
  counts = chosen.sum((0, 1))
  expected = (counts - counts.mean()) * (factor != 0)
  assert value == 0 and counts.sum() == 2 * VALID.sum()
  np.testing.assert_array_equal(gradient.pop('balance_bias'), 4 * expected)
  assert not any(map(np.any, jax.tree.leaves(gradient)))


def test_biases_even_out_the_load_of_a_skewed_router():
  """By the rule of the paper alone: nothing else is trained, and there is no auxiliary loss."""
  module = make_layer(experts=8, balance=0.0, balance_bias=True)
  x = jnp.asarray(np.random.default_rng(0).standard_normal((8, 64, D)) + 1, jnp.float32)
  valid = jnp.ones((8, 64), bool)
  params = jax.tree.map(lambda p: jnp.asarray(0.3 * p, jnp.float32), draw_params(module, x, valid))
  params['balance_bias'] *= 0.0

  @jax.jit
  def step(bias, _):
    def loss(bias):
      return module.apply(
        {'params': params | {'balance_bias': bias}}, x, valid, mutable=['losses', 'metrics']
      )[1]

    reports, pull = jax.vjp(loss, bias)
    [excess] = pull(jax.tree.map(jnp.ones_like, reports))
    return bias - 0.001 * jnp.sign(excess), reports['metrics']['load'][0]

  _, loads = jax.lax.scan(step, params['balance_bias'], length=200)
  assert loads[0] > 2 and loads[-20:].max() < 1.1


def test_balance_loss_of_even_and_uneven_routing():
  """k if all experts are chosen equally often; E · (its probability) if one is always chosen."""
  module = MixtureOfExperts(
    4, F, False, normal(1.0), normal(1.0), jnp.float32, experts=4, top_k=1, normalize=False, balance=1.0
  )
  params = draw_params(module, np.eye(4)[None], np.ones((1, 4), bool))
  params['router']['kernel'] = 5 * np.eye(4)

  def loss(x):
    return float(run(module, params, x, np.ones((1, 4), bool), mutable=['losses'])[1]['losses']['balance'][0])

  assert loss(np.eye(4)[None]) == pytest.approx(1, rel=1e-5)
  assert loss(np.eye(4)[[0, 0, 0, 0]][None]) == pytest.approx(4 * np.exp(5) / (np.exp(5) + 3), rel=1e-5)


def test_bfloat16_inputs_are_routed_in_float32():
  module = make_layer(jnp.bfloat16, experts=4, shared=1)
  params = draw_params(module)
  x = np.asarray(jnp.asarray(X, jnp.bfloat16), np.float64)
  y, variables = run(module, params, x, mutable=['losses'])
  assert y.dtype == jnp.bfloat16
  balance, _ = reference.losses(x, VALID, params['router']['kernel'], 2)
  assert variables['losses']['balance'][0].dtype == jnp.float32
  assert variables['losses']['balance'] == pytest.approx((0.01 * balance,), rel=1e-5)
  exact = run(make_layer(experts=4, shared=1), params, x)
  np.testing.assert_allclose(y.astype(np.float32), exact, rtol=0.05, atol=0.02 * np.abs(exact).max())


def test_each_expert_is_initialized_independently():
  module = MixtureOfExperts(64, 128, True, lecun_normal(), normal(0.3), jnp.float32, experts=16)
  boxes = jax.jit(module.init)(jax.random.key(0), jnp.zeros((1, 2, 64)), jnp.ones((1, 2), bool))['params']
  axes = {name: {part: box.names for part, box in p.items()} for name, p in boxes.items()}
  assert axes == dict(
    router=dict(kernel=('embed', 'expert')),
    up=dict(kernel=('expert', 'embed', 'mlp'), bias=('expert', 'mlp')),
    gate=dict(kernel=('expert', 'embed', 'mlp'), bias=('expert', 'mlp')),
    down=dict(kernel=('expert', 'mlp', 'embed'), bias=('expert', 'embed')),
  )
  assert boxes['up']['kernel'].initializer == 'lecun_normal(1.0)'
  params = nn.unbox(boxes)
  for name, deviation in dict(up=64**-0.5, gate=64**-0.5, down=0.3).items():
    kernel = np.asarray(params[name]['kernel'])
    np.testing.assert_allclose(kernel.std((1, 2)), deviation, rtol=0.05)
    correlations = np.corrcoef(kernel.reshape(16, -1))[~np.eye(16, dtype=bool)]
    assert np.abs(correlations).max() < 0.06  # 8192 numbers each


class TestSlots:
  def choices(self, kind, N, k, E, seed=0):
    """[k · N], first choices first; E means no expert."""
    draw = np.random.default_rng(seed)
    if kind == 'one expert':
      experts = np.stack([np.full(N, (j + E - 1) % E) for j in range(k)])
    elif kind == 'nothing':
      experts = np.full((k, N), E)
    else:
      experts = np.stack([draw.permutation(E)[:k] for _ in range(N)], 1)
      if kind == 'some':
        experts = np.where(draw.random(N) < 0.5, E, experts)
    return experts.reshape(-1)

  @pytest.mark.parametrize('kind', ['one expert', 'nothing', 'all', 'some'])
  @pytest.mark.parametrize('N, k, E', [(1, 1, 1), (1, 2, 8), (7, 1, 4), (50, 2, 3), (33, 3, 40), (300, 4, 5)])
  @pytest.mark.parametrize('capacity', [1, 7, 300])
  def test_each_choice_has_one_slot_in_order(self, kind, N, k, E, capacity):
    choices = self.choices(kind, N, k, E)
    plan = jax.jit(assign_slots, static_argnums=(1, 2))(jnp.asarray(choices), E, capacity)
    slots, sources = np.asarray(plan.slots), np.asarray(plan.sources)
    assert len(set(slots)) == len(choices) and len(set(sources)) == E * capacity
    for i in range(E):
      chosen = np.flatnonzero(choices == i)
      first = chosen[:capacity]
      np.testing.assert_array_equal(slots[first], i * capacity + np.arange(len(first)))
      np.testing.assert_array_equal(sources[slots[first]], first)
      assert (slots[chosen[capacity:]] >= E * capacity).all()
    assert (slots[choices == E] >= E * capacity).all()
    assert (sources < len(choices)).sum() == (slots < E * capacity).sum()


def test_an_unlimited_capacity_gives_what_none_gives():
  params = draw_params(make_layer(experts=4))
  dropless, capped = (make_layer(experts=4, capacity=capacity) for capacity in (None, 100.0))

  def gradients(module):
    return jax.grad(lambda params: jnp.sin(run(module, params)).sum())(params)

  np.testing.assert_allclose(run(dropless, params), run(capped, params), rtol=1e-5, atol=1e-4)
  for a, b in zip(*(jax.tree.leaves(gradients(module)) for module in (dropless, capped)), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())


@pytest.mark.parametrize(
  'settings, message',
  [
    (dict(experts=0), 'experts=0 must be at least 1'),
    (dict(top_k=0), 'top_k=0 must lie in 1 … experts=8'),
    (dict(top_k=9), 'top_k=9 must lie in 1 … experts=8'),
    (dict(top_k=1), 'top_k=1 with normalize=True gives every weight 1.*use normalize=False'),
    (dict(activation='swigul'), "activation='swigul' names 'swigul', .* did you mean 'swiglu'"),
    (dict(capacity=0.0), 'capacity=0.0 must be more than 0, or None'),
    (dict(balance=-1.0), 'balance=-1.0 must be 0 or more'),
    (dict(shared=-1), 'shared=-1 must be 0 or more'),
  ],
)
def test_invalid_settings(settings, message):
  with pytest.raises(ValueError, match=message):
    make_layer(**settings)


@pytest.mark.parametrize(
  'text, hidden',
  [
    ('gelu', 192),
    ('relu', 192),
    ('swiglu', 128),
    ('geglu', 128),
    ('mixture_of_experts', 128),
    ('mixture_of_experts(4, activation="gelu")', 192),
    ('none', 0),
  ],
)
def test_default_hidden_width_depends_on_the_gate(text, hidden):
  assert default_hidden(text, 48) == hidden


@pytest.mark.parametrize(
  'text, message',
  [
    ('swigelu', "did you mean 'swiglu'"),
    ('gelu(experts=4)', "'gelu.experts=4.' passes 'experts'"),
    ('gelu(form="relu")', "passes 'form'"),
    ('mixture_of_experts(expert=4)', "did you mean 'experts'"),
    ('mixture_of_experts(hidden=4)', "passes 'hidden'"),
    ('mixture_of_experts(experts=2.5)', 'must be of type int'),
    ('none(3)', 'none takes ()'),
    ('mixture_of_experts(top_k=9)', "'mixture_of_experts.top_k=9.': top_k=9 must lie in"),
  ],
)
def test_invalid_specs(text, message):
  with pytest.raises(ValueError, match=message):
    default_hidden(text, 48)


def test_is_gated_matches_the_parameters():
  x, valid = jnp.zeros((1, 2, D)), jnp.ones((1, 2), bool)
  for name in spec.variant_names(tfm.feed_forwards):
    kind = spec.find_variant(name, tfm.feed_forwards, FeedForward)
    if not kind.is_branch:
      continue
    layer = kind(
      width=D, hidden=F, bias=True, initializer=normal(), output_initializer=normal(), dtype=jnp.float32
    )
    params = jax.eval_shape(layer.init, jax.random.key(0), x, valid)['params']
    assert ('gate' in params) == layer.is_gated, name
