"""Paths from data to noise, x_t = a_t x_0 + s_t ε, and what a model predicts at a point of one."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval

from tfm.shapes import Array, Float
from tfm.spec import PositiveFloat


Coefficients = tuple[Float[Array, '...'], Float[Array, '...']]  # a and s, the shares of data and of noise
Steps = Annotated[int, Interval(ge=2, le=100_000)]
MODEL_STEPS = 1000  # a model reads times between 0 and about this


class Path(abc.ABC):
  """x_t = a_t x_0 + s_t ε with noise ε ~ N(0, 1); t grows from data to noise.

  Attributes:
    is_straight: whether a_t = 1 - t and s_t = t.
  """

  is_straight: ClassVar[bool] = False

  @abc.abstractmethod
  def draw_time(self, key: Array) -> Array:
    """A random time of training."""

  @abc.abstractmethod
  def coefficients(self, t: Array) -> Coefficients:
    """a_t and s_t, float32, of the shape of t."""

  @abc.abstractmethod
  def spaced_times(self, steps: int) -> np.ndarray:
    """The times [steps] that a sampler visits, from noise to data; after the last one it is at the data.

    Raises:
      ValueError: for more steps than there are times.
    """

  @abc.abstractmethod
  def model_time(self, t: Array) -> Float[Array, '...']:
    """The time as a model reads it, about 0 to 1000."""


@dataclasses.dataclass(frozen=True)
class VariancePreserving(Path):
  """a_t = √ᾱ_t and s_t = √(1 - ᾱ_t) with ᾱ_t = Π_{i ≤ t} (1 - β_i), for whole t < `steps` (Ho et al. 2020,
  eq. 4).
  """

  steps: Steps = 1000

  @abc.abstractmethod
  def betas(self) -> np.ndarray:
    """β_t, float64 [steps]."""

  @property
  def alpha_bars(self) -> np.ndarray:
    """ᾱ_t, float64 [steps]."""
    return np.cumprod(1 - self.betas())

  def draw_time(self, key):
    return jax.random.randint(key, (), 0, self.steps)

  def coefficients(self, t):
    alpha_bars = self.alpha_bars
    return tuple(jnp.asarray(np.sqrt(share), jnp.float32)[t] for share in (alpha_bars, 1 - alpha_bars))

  def spaced_times(self, steps):
    if not 1 <= steps <= self.steps:
      raise ValueError(f'{steps} steps of a sampler must be at least 1 and at most {self.steps}')
    return np.round(np.linspace(self.steps - 1, 0, steps)).astype(np.int32)

  def model_time(self, t):
    return t.astype(jnp.float32) * (MODEL_STEPS / self.steps)


@dataclasses.dataclass(frozen=True)
class LinearSchedule(VariancePreserving):
  """β grows evenly from `first` to `last` (Ho et al. 2020, §4)."""

  first: Annotated[float, Interval(gt=0, lt=1)] = 1e-4
  last: Annotated[float, Interval(gt=0, lt=1)] = 0.02

  def betas(self):
    return np.linspace(self.first, self.last, self.steps)


@dataclasses.dataclass(frozen=True)
class CosineSchedule(VariancePreserving):
  """ᾱ_t = f(t + 1) / f(0) with f(t) = cos²(π/2 · (t / steps + offset) / (1 + offset)); no β exceeds 0.999
  (Nichol & Dhariwal 2021, eq. 17).
  """

  offset: PositiveFloat = 0.008

  def betas(self):
    t = np.arange(self.steps + 1) / self.steps
    f = np.cos(np.pi / 2 * (t + self.offset) / (1 + self.offset)) ** 2
    return np.minimum(1 - f[1:] / f[:-1], 0.999)


@dataclasses.dataclass(frozen=True)
class Straight(Path):
  """a_t = 1 - t and s_t = t for t between 0 and 1: rectified flow (Liu et al. 2022, eq. 1), with the noise at
  t = 1 (Esser et al. 2024, Stable Diffusion 3, eq. 13).

  Attributes:
    times: how times of training are drawn: uniform, or logit_normal, σ(N(0, 1)), more often in the middle
      (Esser et al. 2024, eq. 19, of which this is the best setting there).
  """

  is_straight = True

  times: str = 'uniform'

  def __post_init__(self):
    if self.times not in TIMES:
      raise ValueError(f'times={self.times!r} is not known; use one of {", ".join(TIMES)}')

  def draw_time(self, key):
    return TIMES[self.times](key)

  def coefficients(self, t):
    t = jnp.asarray(t, jnp.float32)
    return 1 - t, t

  def spaced_times(self, steps):
    if steps < 1:
      raise ValueError(f'{steps} steps of a sampler must be at least 1')
    return np.linspace(1, 0, steps + 1, dtype=np.float32)[:-1]

  def model_time(self, t):
    return t * MODEL_STEPS


TIMES = {'uniform': jax.random.uniform, 'logit_normal': lambda key: jax.nn.sigmoid(jax.random.normal(key))}
PATHS = {'linear': LinearSchedule, 'cosine': CosineSchedule, 'straight': Straight}

# Prediction → the shares p and q of data and noise in it, of a and s: what a model predicts is p x_0 + q ε.
PREDICTIONS: dict[str, Callable[[Array, Array], Coefficients]] = {
  'epsilon': lambda a, s: (jnp.zeros_like(a), jnp.ones_like(a)),  # the noise (Ho et al. 2020, §3.2)
  'v': lambda a, s: (-s, a),  # (Salimans & Ho 2022, App. D)
  # dx_t/dt of a straight path (Liu et al. 2022, eq. 1)
  'flow': lambda a, s: (-jnp.ones_like(a), jnp.ones_like(a)),
}


def combine(
  shares: Coefficients, data: Float[Array, 'B ...'], noise: Float[Array, 'B ...']
) -> Float[Array, 'B ...']:
  """The shares [B] of data and noise, added."""
  first, second = (jnp.reshape(share, (-1,) + (1,) * (data.ndim - 1)) for share in shares)
  return first * data + second * noise


def separate(
  prediction: str, y: Float[Array, 'B ...'], x: Float[Array, 'B ...'], at: Coefficients
) -> tuple[Float[Array, 'B ...'], Float[Array, 'B ...']]:
  """The data x_0 and the noise ε that a prediction y at the point x = a x_0 + s ε means: the solution of
  y = p x_0 + q ε and that.

  Args:
    at: a and s [B].
  """
  (a, s), (p, q) = at, PREDICTIONS[prediction](*at)
  determinant = a * q - s * p
  data = combine((q / determinant, -s / determinant), x, y)
  return data, combine((-p / determinant, a / determinant), x, y)


def posterior_variance(now: Coefficients, then: Coefficients) -> Float[Array, '...']:
  """The variance β̃ of q(x' | x, x_0), of a point at the time `then` given that at `now` (Ho et al. 2020, eq.
  7, for any path).
  """
  return (then[1] / now[1]) ** 2 * forward_variance(now, then)


def forward_variance(now: Coefficients, then: Coefficients) -> Float[Array, '...']:
  """The variance β of q(x | x'), of a point at the time `now` given that at the earlier time `then`."""
  (a, s), (a2, s2) = now, then
  return jnp.maximum(s**2 - (a * s2 / a2) ** 2, 0)


def interpolate_log_variance(
  share: Float[Array, 'B ...'], low: Float[Array, '...'], high: Float[Array, '...']
) -> Float[Array, 'B ...']:
  """log Σ of a learned variance between β̃ (share = -1) and β (share = 1) (Nichol & Dhariwal 2021, eq. 15).

  Args:
    low, high: β̃ and β, which broadcast with `share`.
  """
  return ((1 - share) * jnp.log(low) + (1 + share) * jnp.log(high)) / 2
