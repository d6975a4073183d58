"""Images from noise: samplers of a diffusion model, and classifier-free guidance."""

import abc
import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from tfm.errors import require
from tfm.layers.diffusion_path import (
  Coefficients,
  Path,
  forward_variance,
  interpolate_log_variance,
  posterior_variance,
  separate,
)
from tfm.models.diffusion import Diffusion
from tfm.objectives.diffusion import Diffusion as Objective
from tfm.shapes import Array, Float, Int, PyTree
from tfm.spec import Fraction


# (points x [B … Q], a time) → what a model predicts of them [B … Q], or that and the shares of its learned
# variance [B … 2Q]
Predict = Callable[[Float[Array, 'B ...'], Array], Float[Array, 'B ...']]


class Sampler(abc.ABC):
  """How a sampler goes from one time of a path to the next."""

  def validate(self, path: Path) -> None:
    """Raises ValueError for a path on which it is not defined."""

  @abc.abstractmethod
  def step(
    self,
    data: Float[Array, 'B ...'],
    noise: Float[Array, 'B ...'],
    now: Coefficients,
    then: Coefficients,
    fresh: Float[Array, 'B ...'],
    share: Float[Array, 'B ...'] | None,
  ) -> Float[Array, 'B ...']:
    """The points at the next time.

    Args:
      data, noise: x_0 and ε as the model predicts them at the points x = a x_0 + s ε.
      now, then: (a, s) here and at the next time, which is nearer to the data.
      fresh: noise ~ N(0, 1).
      share: of the learned variance, see `interpolate_log_variance`; None: the model learned none.
    """


@dataclasses.dataclass(frozen=True)
class DDIM(Sampler):
  """x' = a' x_0 + √(s'² - σ²) ε + σ z with σ² = η² s'²/s² (s² - a² s'²/a'²), z ~ N(0, 1) (Song et al. 2021,
  eq. 12 and 16, for any path).

  Attributes:
    eta: η; 0: the noise at the start decides everything; 1: ancestral sampling, as `ddpm`.
  """

  eta: Fraction = 0.0

  def step(self, data, noise, now, then, fresh, share):
    deviation = self.eta * jnp.sqrt(posterior_variance(now, then))
    return posterior_mean(data, noise, then, deviation) + deviation * fresh


@dataclasses.dataclass(frozen=True)
class DDPM(Sampler):
  """x' ~ q(x' | x, x_0), ancestral sampling (Ho et al. 2020, eq. 6 and 7; between any two times: Song et al.
  2021, η = 1); with the variance that the model has learned, if it has (Nichol & Dhariwal 2021, eq. 15).
  """

  def step(self, data, noise, now, then, fresh, share):
    variance = posterior_variance(now, then)
    mean = posterior_mean(data, noise, then, jnp.sqrt(variance))
    if share is not None:
      learned = jnp.exp(interpolate_log_variance(share, variance, forward_variance(now, then)))
      variance = jnp.where(variance > 0, learned, 0)  # the last step is without noise
    return mean + jnp.sqrt(variance) * fresh


@dataclasses.dataclass(frozen=True)
class Euler(Sampler):
  """x' = x + (t' - t) (ε - x_0), for straight paths (Liu et al. 2022, §2.2), on which it equals `ddim`."""

  def validate(self, path):
    require(
      path.is_straight,
      "sampler='euler' follows straight paths, and the model was trained on others; use 'ddim' or 'ddpm'",
    )

  def step(self, data, noise, now, then, fresh, share):
    x = now[0] * data + now[1] * noise
    return x + (then[1] - now[1]) * (noise - data)


def posterior_mean(data: Array, noise: Array, then: Coefficients, deviation: Array) -> Array:
  """The mean of q(x' | x, x_0) if that has such a standard deviation and x' the one of its time."""
  a, s = then
  return a * data + jnp.sqrt(jnp.maximum(s**2 - deviation**2, 0)) * noise


SAMPLERS = {'ddim': DDIM, 'ddpm': DDPM, 'euler': Euler}


def denoise(
  predict: Predict,
  path: Path,
  prediction: str,
  sampler: Sampler,
  x: Float[Array, 'B ...'],
  keys: Array,
  steps: int,
) -> Float[Array, 'B ...']:
  """The data at the end of a path that begins at the noise x.

  Args:
    predict: the model; `prediction`: what it predicts.
    keys: of the noise that each row gets on the way, [B].
    steps: how many times the model is called.

  Raises:
    ValueError: for a sampler that is not defined on the path, or too many steps.
  """
  sampler.validate(path)
  times = path.spaced_times(steps)
  a, s = path.coefficients(jnp.asarray(times))
  # After the last time comes the data.
  ends = jnp.append(a[1:], 1.0), jnp.append(s[1:], 0.0)

  def advance(x, inputs):
    number, t, now, then = inputs
    at = tuple(jnp.broadcast_to(share, len(x)) for share in now)
    y, share = jnp.split(predict(x, t), [x.shape[-1]], -1)
    data, noise = separate(prediction, y, x, at)
    fresh = jax.vmap(lambda key: jax.random.normal(jax.random.fold_in(key, number), x.shape[1:]))(keys)
    return sampler.step(data, noise, now, then, fresh, share if share.size else None), None

  return jax.lax.scan(advance, x, (np.arange(steps), times, (a, s), ends))[0]


def guide(model: Diffusion, params: PyTree, path: Path, classes: Int[Array, 'B'], guidance: float) -> Predict:
  """(x, t) → y∅ + w (y - y∅), where y is what a model predicts for the classes and y∅ without one
  (Ho & Salimans 2022, eq. 6, whose w is one less). The shares of a learned variance are not guided.

  Args:
    guidance: w; 1: y alone; 0: y∅ alone; above 1: away from what all classes have in common.
  """
  passes = [(guidance, classes), (1 - guidance, jnp.full_like(classes, model.classes))]

  def predict(x, t):
    times = jnp.broadcast_to(path.model_time(jnp.asarray(t)), len(x))
    outputs = [
      (weight, model.apply({'params': params}, *model.arguments(x, times, of))[0])
      for weight, of in passes
      if weight
    ]
    Q = x.shape[-1]
    guided = sum(weight * y[..., :Q] for weight, y in outputs)
    return jnp.concatenate([guided, outputs[0][1][..., Q:]], -1)

  return predict


def sample_images(
  model: Diffusion,
  params: PyTree,
  objective: Objective,
  classes: Int[np.ndarray, 'B'],
  numbers: Int[np.ndarray, 'B'],
  sampler: Sampler,
  steps: int,
  guidance: float,
  seed: int,
) -> Float[Array, 'B H W Q']:
  """An image of each class in `classes`, between about -1 and 1.

  Args:
    numbers: of the samples; one depends on its class, its number and the seed, not on the others.
    sampler, steps: see `denoise`; guidance: see `guide`.

  Raises:
    ValueError: as `denoise`.
  """
  keys = jax.vmap(lambda number: jax.random.fold_in(jax.random.key(seed), number))(jnp.asarray(numbers))
  begin, on_the_way = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
  x = jax.vmap(lambda key: jax.random.normal(key, model.shape))(begin)
  predict = guide(model, params, objective.path, jnp.asarray(classes, jnp.int32), guidance)
  return denoise(predict, objective.path, objective.prediction, sampler, x, on_the_way, steps)
