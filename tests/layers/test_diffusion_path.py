"""Paths from data to noise against their papers, and what predictions say of the two."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.layers.diffusion_path import PATHS, PREDICTIONS, combine, separate


def alpha_bars_linear(steps=1000):
  """Ho et al. 2020, §2 and §4, one step after another."""
  kept, product = [], 1.0
  for t in range(steps):
    product *= 1 - (1e-4 + (0.02 - 1e-4) * t / (steps - 1))
    kept.append(product)
  return np.array(kept)


def alpha_bars_cosine(steps=1000):
  """Nichol & Dhariwal 2021, eq. 17, with β ≤ 0.999."""

  def f(t):
    return np.cos((t / steps + 0.008) / 1.008 * np.pi / 2) ** 2

  kept, product = [], 1.0
  for t in range(1, steps + 1):
    product *= 1 - min(1 - f(t) / f(t - 1), 0.999)
    kept.append(product)
  return np.array(kept)


@pytest.mark.parametrize('name, expected', [('linear', alpha_bars_linear()), ('cosine', alpha_bars_cosine())])
def test_alpha_bars(name, expected):
  path = PATHS[name]()
  np.testing.assert_allclose(path.alpha_bars, expected, rtol=1e-9)
  t = np.array([0, 3, 500, 999])
  a, s = path.coefficients(jnp.asarray(t))
  np.testing.assert_allclose(a, np.sqrt(expected[t]), rtol=1e-6)
  np.testing.assert_allclose(s, np.sqrt(1 - expected[t]), rtol=1e-6)


def test_the_cosine_is_that_of_the_paper_but_where_beta_is_limited():
  f = np.cos((np.arange(1, 990) / 1000 + 0.008) / 1.008 * np.pi / 2) ** 2
  expected = f / np.cos(0.008 / 1.008 * np.pi / 2) ** 2
  np.testing.assert_allclose(PATHS['cosine']().alpha_bars[:989], expected, rtol=1e-9)


def test_the_straight_path():
  a, s = PATHS['straight']().coefficients(jnp.array([0.0, 0.25, 1.0]))
  np.testing.assert_allclose(a, [1, 0.75, 0])
  np.testing.assert_allclose(s, [0, 0.25, 1])


@pytest.mark.parametrize('name', PATHS)
@pytest.mark.parametrize('prediction', PREDICTIONS)
def test_predictions_and_what_they_are_made_of_follow_from_each_other(name, prediction):
  """ε and x_0 from every prediction, and through them every prediction from every other."""
  path, draw = PATHS[name](), np.random.default_rng(0)
  data, noise = (jnp.asarray(draw.standard_normal((3, 2, 5)), jnp.float32) for _ in range(2))
  at = path.coefficients(jnp.array([0.1, 0.5, 0.9]) if path.is_straight else jnp.array([5, 300, 700]))
  x = combine(at, data, noise)
  for i, (a, s) in enumerate(zip(*at)):
    np.testing.assert_allclose(x[i], a * data[i] + s * noise[i], atol=1e-6)
  y = combine(PREDICTIONS[prediction](*at), data, noise)
  a, s = (np.asarray(share)[:, None, None] for share in at)
  expected = {'epsilon': noise, 'v': a * noise - s * data, 'flow': noise - data}
  np.testing.assert_allclose(y, expected[prediction], atol=1e-6)
  again = separate(prediction, y, x, at)
  np.testing.assert_allclose(again[0], data, atol=2e-4)
  np.testing.assert_allclose(again[1], noise, atol=2e-4)
  np.testing.assert_allclose(combine(at, *again), x, atol=1e-5)  # also of what is no true pair
  other = separate(prediction, jnp.zeros_like(y), x, at)
  np.testing.assert_allclose(combine(at, *other), x, rtol=1e-5, atol=1e-5)


def test_a_velocity_is_the_derivative_of_a_straight_path():
  path = PATHS['straight']()

  def point(t):
    return combine(path.coefficients(t[None]), jnp.array([[2.0]]), jnp.array([[-1.0]]))[0, 0]

  p, q = PREDICTIONS['flow'](*path.coefficients(jnp.float32(0.3)))
  np.testing.assert_allclose(jax.grad(point)(jnp.float32(0.3)), p * 2.0 - q)


@pytest.mark.parametrize('name, first', [('linear', 999), ('cosine', 999), ('straight', 1)])
def test_samplers_visit_evenly_spaced_times(name, first):
  path = PATHS[name]()
  times = path.spaced_times(5)
  assert len(times) == 5 and times[0] == first and (np.diff(times) < 0).all()
  np.testing.assert_allclose(np.diff(times), np.diff(times).mean(), atol=1 if first == 999 else 1e-6)
  assert times[-1] == (0 if first == 999 else np.float32(0.2))


def test_times_of_training():
  keys = jax.random.split(jax.random.key(0), 20_000)
  whole = np.asarray(jax.vmap(PATHS['linear'](steps=10).draw_time)(keys))
  assert set(whole.tolist()) == set(range(10))
  np.testing.assert_allclose(np.bincount(whole) / len(keys), 0.1, atol=0.01)
  uniform = np.asarray(jax.vmap(PATHS['straight']().draw_time)(keys))
  np.testing.assert_allclose(np.quantile(uniform, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.015)
  t = np.asarray(jax.vmap(PATHS['straight']('logit_normal').draw_time)(keys))
  logits = np.log(t / (1 - t))
  np.testing.assert_allclose([logits.mean(), logits.std()], [0, 1], atol=0.03)


@pytest.mark.parametrize('name, steps', [('linear', 1001), ('linear', 0), ('straight', 0)])
def test_steps_that_a_path_does_not_have(name, steps):
  with pytest.raises(ValueError, match=f'{steps} steps of a sampler must be at least 1'):
    PATHS[name]().spaced_times(steps)
