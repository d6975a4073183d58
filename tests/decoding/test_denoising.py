"""Samplers: with the exact denoiser of a Gaussian they draw from it; guidance, through two outputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.test_diffusion import build_diffusion
from tfm.decoding.denoising import SAMPLERS, denoise, guide, sample_images
from tfm.layers.diffusion_path import PATHS, PREDICTIONS, combine
from tfm.objectives.diffusion import Diffusion


pytestmark = pytest.mark.slow
MEAN, DEVIATION, SAMPLES = 1.5, 0.4, 4000


def exact(path, prediction):
  """What a perfect model predicts of x_t if x_0 ~ N(MEAN, DEVIATION²): E[x_0 | x_t], E[ε | x_t] by Bayes."""

  def predict(x, t):
    at = path.coefficients(jnp.asarray(t))
    a, s = at
    data = MEAN + a * DEVIATION**2 / (a**2 * DEVIATION**2 + s**2) * (x - a * MEAN)
    noise = s / (a**2 * DEVIATION**2 + s**2) * (x - a * MEAN)
    return combine(PREDICTIONS[prediction](*at), data, noise)

  return predict


def run(path, prediction, sampler, steps, samples=SAMPLES):
  key = jax.random.key(0)
  x, keys = jax.random.normal(key, (samples, 1)), jax.random.split(jax.random.key(1), samples)
  return denoise(exact(path, prediction), path, prediction, sampler, x, keys, steps)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
  'name, prediction, sampler, steps',
  [
    ('linear', 'epsilon', 'ddpm', 1000),
    ('linear', 'epsilon', 'ddim', 500),
    ('cosine', 'v', 'ddpm', 1000),
    ('straight', 'flow', 'euler', 500),
    ('straight', 'v', 'ddpm', 500),
  ],
)
def test_the_moments_of_a_gaussian(name, prediction, sampler, steps):
  """Within five standard errors, and 0.5 % of the deviation that is left of the steps' size."""
  x = np.asarray(run(PATHS[name](), prediction, SAMPLERS[sampler](), steps))
  assert abs(x.mean() - MEAN) < 5 * DEVIATION / np.sqrt(SAMPLES) + 0.005 * DEVIATION
  assert abs(x.std() - DEVIATION) < 5 * DEVIATION / np.sqrt(2 * SAMPLES) + 0.005 * DEVIATION


def test_noise_alone_decides_the_path_of_an_ode():
  """x_0 = MEAN + DEVIATION · (x_T - a MEAN) / √(a² DEVIATION² + s²), whatever the keys."""
  path, x = PATHS['straight'](), jnp.linspace(-2, 2, 9)[:, None]
  ends = [
    denoise(exact(path, 'flow'), path, 'flow', sampler, x, jax.random.split(jax.random.key(i), 9), 400)
    for i, sampler in enumerate((SAMPLERS['ddim'](), SAMPLERS['euler']()))
  ]
  np.testing.assert_allclose(ends[0], MEAN + DEVIATION * x, atol=5e-3)
  np.testing.assert_allclose(ends[0], ends[1], atol=1e-5)


def test_ddpm_is_ddim_with_eta_1_and_differs_from_eta_0():
  path = PATHS['linear']()
  one, other, none = (
    run(path, 'epsilon', sampler, 20, 16)
    for sampler in (SAMPLERS['ddpm'](), SAMPLERS['ddim'](eta=1.0), SAMPLERS['ddim']())
  )
  np.testing.assert_array_equal(one, other)
  assert np.abs(one - none).min() > 1e-4


def test_the_last_step_is_the_mean_of_the_data():
  """Of one step from noise alone nothing is known but the mean."""
  for sampler in SAMPLERS.values():
    x = run(PATHS['straight'](), 'flow', sampler(), 1, 8)
    np.testing.assert_allclose(x, MEAN, rtol=1e-5)


def test_one_step_of_ddpm_is_equation_7():
  """μ̃ and β̃ of Ho et al. 2020, eq. 7, of neighbouring times."""
  path, draw, t = PATHS['linear'](), np.random.default_rng(0), 700
  data, noise, fresh = (jnp.asarray(draw.standard_normal(4), jnp.float32) for _ in range(3))
  now, then = path.coefficients(jnp.array(t)), path.coefficients(jnp.array(t - 1))
  kept, before, beta = path.alpha_bars[t], path.alpha_bars[t - 1], path.betas()[t]
  x = np.sqrt(kept) * data + np.sqrt(1 - kept) * noise
  mean = np.sqrt(before) * beta / (1 - kept) * data + np.sqrt(1 - beta) * (1 - before) / (1 - kept) * x
  expected = mean + np.sqrt((1 - before) / (1 - kept) * beta) * fresh
  np.testing.assert_allclose(
    SAMPLERS['ddpm']().step(data, noise, now, then, fresh, None), expected, rtol=1e-3, atol=1e-3
  )


def test_euler_is_refused_on_other_paths():
  with pytest.raises(ValueError, match="sampler='euler' follows straight paths, .* use 'ddim' or 'ddpm'"):
    run(PATHS['linear'](), 'epsilon', SAMPLERS['euler'](), 4, 2)


@pytest.fixture(scope='module')
def built():
  return build_diffusion()


def test_guidance_is_a_line_through_no_class_and_the_class(built):
  model, params = built
  path, x, classes = PATHS['straight'](), jnp.ones((2, 8, 8, 1)) / 3, jnp.array([4, 7])

  def read(guidance, classes=classes):
    return np.asarray(jax.jit(guide(model, params, path, classes, guidance))(x, 0.6))

  nothing, full = read(0.0), read(1.0)
  np.testing.assert_allclose(full, apply(model, params, x, 600.0, classes), rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(nothing, apply(model, params, x, 600.0, jnp.full(2, 10)), rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(read(0.0, jnp.array([1, 2])), nothing, rtol=1e-6, atol=1e-6)
  assert np.abs(full - nothing).max() > 1e-3
  np.testing.assert_allclose(read(3.0), nothing + 3 * (full - nothing), rtol=1e-4, atol=1e-4)


def test_the_learned_variance_is_that_of_the_class():
  model, params = build_diffusion(objective='diffusion(10, learned_variance=True)')
  x, classes = jnp.ones((2, 8, 8, 1)) / 3, jnp.array([4, 7])
  y = jax.jit(guide(model, params, PATHS['linear'](), classes, 3.0))(x, 600)
  full, nothing = (apply(model, params, x, 600.0, of) for of in (classes, jnp.full(2, 10)))
  np.testing.assert_allclose(y[..., 1:], full[..., 1:], rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(y[..., :1], (nothing + 3 * (full - nothing))[..., :1], rtol=1e-4, atol=1e-4)


def apply(model, params, x, time, classes):
  return jax.jit(model.apply)({'params': params}, *model.arguments(x, jnp.full(2, time), classes))[0]


def test_an_image_does_not_depend_on_the_others(built):
  model, params = built
  objective = Diffusion(0, 'contiguous', 0, classes=10, schedule='straight', prediction='flow')

  def sample(classes, numbers, seed=0):
    return np.asarray(
      sample_images(model, params, objective, classes, numbers, SAMPLERS['ddpm'](), 3, 2.0, seed)
    )

  many, one = sample(np.array([1, 2, 3]), np.array([0, 5, 5])), sample(np.array([2]), np.array([5]))
  np.testing.assert_allclose(one[0], many[1], rtol=1e-4, atol=1e-4)
  assert np.abs(sample(np.array([2]), np.array([5]), seed=1) - one).max() > 0.1
  assert np.abs(many[1] - many[2]).max() > 1e-4  # another class from the same noise


def test_ddpm_has_the_learned_variance():
  """From β̃ at -1 to β at 1, and none in the last step."""
  path, fresh = PATHS['linear'](), jnp.array([1.0, 1.0, 1.0])
  now, then = (path.coefficients(jnp.array(t)) for t in (600, 599))
  data = noise = jnp.zeros(3)
  x = SAMPLERS['ddpm']().step(data, noise, now, then, fresh, jnp.array([-1.0, 0.0, 1.0]))
  beta, kept, before = path.betas()[600], path.alpha_bars[600], path.alpha_bars[599]
  low, high = (1 - before) / (1 - kept) * beta, beta
  np.testing.assert_allclose(x, np.sqrt([low, np.sqrt(low * high), high]), rtol=1e-3)
  end = jnp.float32(1), jnp.float32(0)
  np.testing.assert_array_equal(SAMPLERS['ddpm']().step(data, noise, then, end, fresh, fresh), data)
