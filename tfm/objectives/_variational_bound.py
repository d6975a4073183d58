"""One step's part of the variational bound of a diffusion model with a learned variance."""

import jax.numpy as jnp
from jax.scipy.stats import norm

from tfm.layers.diffusion_path import (
  VariancePreserving,
  forward_variance,
  interpolate_log_variance,
  posterior_variance,
)
from tfm.shapes import Array, Float, Int


LEVEL = 1 / 255  # half the distance between two of 256 levels in [-1, 1]
EDGE = 0.999  # levels beyond stand for all numbers beyond
LEAST = 1e-12  # of a probability, whose logarithm is taken


def variational_bound(
  path: VariancePreserving,
  data: Float[Array, 'B ...'],
  guess: Float[Array, 'B ...'],
  shares: Float[Array, 'B ...'],
  t: Int[Array, 'B'],
) -> Float[Array, 'B ...']:
  """KL(q(x_{t-1} | x_t, x_0) ‖ N(μ(x_t, x̂_0), Σ)) in nats of each number, and -log p(x_0 | x_1) of 256 levels
  where t = 0 (Ho et al. 2020, eq. 5, 7 and 13; Nichol & Dhariwal 2021, eq. 15).

  Args:
    data, guess: x_0, and x̂_0 as the model predicts it; shares: see `interpolate_log_variance`.
  """
  is_first = (t == 0).reshape((-1,) + (1,) * (data.ndim - 1))
  (a, s), before = (path.coefficients(x.reshape(is_first.shape)) for x in (t, jnp.maximum(t - 1, 0)))
  now, then = (a, s), (jnp.where(is_first, 1, before[0]), jnp.where(is_first, 0, before[1]))
  high = forward_variance(now, then)
  # At t = 0, where the posterior has no variance, the lower bound is that of t = 1.
  one, zero = (path.coefficients(jnp.int32(i)) for i in (1, 0))
  low = jnp.where(is_first, posterior_variance(one, zero), posterior_variance(now, then))
  log_variance = interpolate_log_variance(shares, low, high)
  # Both means are the same function of x_t and of x_0 or x̂_0: the latter times this.
  distance = then[0] * high / s**2 * (data - guess)
  ratio = jnp.log(low) - log_variance
  divergence = (jnp.exp(ratio) - 1 - ratio + distance**2 * jnp.exp(-log_variance)) / 2
  above, below = (norm.cdf((data - guess + by) * jnp.exp(-log_variance / 2)) for by in (LEVEL, -LEVEL))
  probability = jnp.where(data > EDGE, 1, above) - jnp.where(data < -EDGE, 0, below)
  return jnp.where(is_first, -jnp.log(jnp.maximum(probability, LEAST)), divergence)
