"""Scores against their formulas pair by pair; their parameters; invalid settings."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tfm.scores
from tests.reference import scores
from tfm import spec
from tfm.scores.protocol import Score


B, K, G, T, S, C = 2, 2, 3, 4, 5, 8
DRAW = np.random.default_rng(0)
Q, KEY = DRAW.standard_normal((B, K, G, T, C)), DRAW.standard_normal((B, K, S, C))
Q32, KEY32 = jnp.asarray(Q, jnp.float32), jnp.asarray(KEY, jnp.float32)


def build_score(text, params=None):
  """(function of a score, its parameters); they are drawn from N(0, 1) if params is None."""
  if params is None:
    draw = np.random.default_rng(1)
    params = {name: draw.standard_normal(x.shape).astype(np.float32) for name, x in init_params(text).items()}
  return spec.factory(text, tfm.scores, Score, head_width=C)().apply({'params': params}), params


def init_params(text):
  """The initial parameters of a score."""
  module = spec.factory(text, tfm.scores, Score, head_width=C)()
  return nn.unbox(module.init(jax.random.key(0)).get('params', {}))


# The formula of each score, with its parameters by name.
FORMULAS = {
  'additive': lambda p: lambda q, k: scores.additive(p['query'].T, p['key'].T, p['vector'], q, k),
  'additive(3)': lambda p: lambda q, k: scores.additive(p['query'].T, p['key'].T, p['vector'], q, k),
  'bilinear': lambda p: lambda q, k: scores.bilinear(p['weight'], q, k),
  'bilinear(scale=0.3)': lambda p: lambda q, k: 0.3 * scores.bilinear(p['weight'], q, k),
  'cosine': lambda p: lambda q, k: scores.cosine(10, q, k),
  'cosine(250.0)': lambda p: lambda q, k: scores.cosine(250, q, k),
  'cosine(4.0, learned=True)': lambda p: lambda q, k: scores.cosine(np.exp(p['log_temperature']), q, k),
}


@pytest.mark.parametrize('text', FORMULAS)
def test_formula(text):
  score, params = build_score(text)
  logits = score(Q32, KEY32)
  expected = scores.grouped(FORMULAS[text](params), Q, KEY)
  np.testing.assert_allclose(logits, expected, rtol=2e-5, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize('text', FORMULAS)
def test_bfloat16_inputs_are_summed_in_float32(text):
  """Equal to the formula on rounded inputs, within the rounding of bfloat16 products."""
  score, params = build_score(text)
  q, k = jnp.asarray(Q, jnp.bfloat16), jnp.asarray(KEY, jnp.bfloat16)
  logits = jax.jit(score)(q, k)
  assert logits.dtype == jnp.float32
  q, k = (np.asarray(x.astype(jnp.float32), np.float64) for x in (q, k))
  expected = scores.grouped(FORMULAS[text](params), q, k)
  np.testing.assert_allclose(logits, expected, rtol=0, atol=2**-8 * 2 * np.abs(expected).max())


@pytest.mark.sampled(3)
@pytest.mark.parametrize('text', FORMULAS)
def test_gradients_equal_finite_differences(text):
  score, params = build_score(text)
  g = DRAW.standard_normal((B, K, G, T, S))

  def loss(q, k, params):
    return (scores.grouped(FORMULAS[text](params), q, k) * g).sum()

  def ours(q, k, params):
    f, _ = build_score(text, params)
    return (f(q, k) * jnp.asarray(g, jnp.float32)).sum()

  gradients = jax.grad(ours, argnums=(0, 1, 2))(Q32, KEY32, params)
  exact, structure = jax.tree.flatten((Q, KEY, params))
  for i, gradient in enumerate(jax.tree.leaves(gradients)):
    direction = DRAW.standard_normal(gradient.shape)
    ends = [
      loss(*structure.unflatten([x + sign * 1e-5 * direction if j == i else x for j, x in enumerate(exact)]))
      for sign in (1, -1)
    ]
    along = np.asarray(gradient) * direction
    np.testing.assert_allclose(along.sum(), (ends[0] - ends[1]) / 2e-5, atol=2e-6 * np.abs(along).sum())


class TestAdditive:
  def test_hidden_width_defaults_to_the_head_width(self):
    assert {name: x.shape for name, x in init_params('additive').items()} == dict(
      query=(C, C), key=(C, C), vector=(C,)
    )
    assert {name: x.shape for name, x in init_params('additive(width=3)').items()} == dict(
      query=(C, 3), key=(C, 3), vector=(3,)
    )

  def test_initial_logits_have_unit_size_for_any_width(self):
    for width in (4, 512):
      params = init_params(f'additive({width})')
      f, _ = build_score(f'additive({width})', params)
      assert 0.2 < np.sqrt(np.mean(np.square(f(Q32, KEY32)))) < 2

  def test_hidden_values_are_not_stored(self):
    """Both passes need at most a few times the memory of the logits."""
    length, hidden = 256, 64
    f, _ = build_score(f'additive({hidden})')
    q, k = jnp.ones((1, 1, 1, length, C)), jnp.ones((1, 1, length, C))
    for run in (f, jax.grad(lambda q, k: f(q, k).sum(), argnums=(0, 1))):
      memory = jax.jit(run).lower(q, k).compile().memory_analysis()
      assert memory.temp_size_in_bytes < 8 * (4 * length * length)


class TestCosine:
  @pytest.mark.parametrize('text', ['cosine', 'cosine(4.0, learned=True)'])
  @pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
  def test_zero_vectors_have_finite_logits_and_gradients(self, text, dtype):
    f, _ = build_score(text)
    q, k = jnp.asarray(Q, dtype).at[:, :, :, 1].set(0), jnp.asarray(KEY, dtype).at[:, :, 2].set(0)
    logits = np.asarray(f(q, k))
    assert not logits[..., 1, :].any() and not logits[..., 2].any()
    assert logits[..., 0, 0].all() and np.isfinite(logits).all()
    gradients = jax.grad(lambda f, q, k: f(q, k).sum(), argnums=(0, 1, 2))(f, q, k)
    for gradient in jax.tree.leaves(gradients):
      assert np.isfinite(np.asarray(gradient, np.float32)).all()

  def test_invariant_to_norms(self):
    f, _ = build_score('cosine')
    for factor in (1e-2, 1e6):
      np.testing.assert_allclose(f(factor * Q32, KEY32), f(Q32, KEY32), atol=1e-5)
      np.testing.assert_allclose(f(Q32, factor * KEY32), f(Q32, KEY32), atol=1e-5)

  def test_logit_of_a_vector_with_itself_is_the_temperature(self):
    f, _ = build_score('cosine(7.5)')
    logits = f(KEY32[:, :, None], KEY32)
    np.testing.assert_allclose(np.diagonal(logits, axis1=-2, axis2=-1), 7.5, rtol=1e-5)
    assert np.abs(logits).max() < 7.5 * (1 + 1e-5)

  def test_learned_temperature_starts_at_its_setting_and_is_at_most_100(self):
    start = init_params('cosine(4.0, learned=True)')
    assert start['log_temperature'].shape == () and not init_params('cosine')
    unit_cosine, _ = build_score('cosine(1.0)')
    first = start['log_temperature']
    for log, temperature in ((first, 4), (np.log(99), 99), (np.log(101), 100), (50.0, 100)):
      f, _ = build_score('cosine(4.0, learned=True)', dict(log_temperature=log))
      np.testing.assert_allclose(f(Q32, KEY32), temperature * unit_cosine(Q32, KEY32), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
  'text, message',
  [
    ('additive(0)', 'width=0 must be at least 1'),
    ('cosine(0.0)', 'temperature=0.0 must be above 0'),
    ('cosine(-3.0)', 'temperature=-3.0 must be above 0'),
    ('cosine(100.0, learned=True)', 'temperature=100.0 must start below its upper bound 100'),
  ],
)
def test_invalid_settings(text, message):
  with pytest.raises(ValueError) as error:
    spec.factory(text, tfm.scores, Score, head_width=C)
  assert message in str(error.value)
