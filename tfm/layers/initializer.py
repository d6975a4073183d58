"""Initializers by name; they know the contracted axes, so that fans are correct at any rank."""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax

from tfm.shapes import Array
from tfm.spec import NonNegativeFloat, PositiveFloat


Axes = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Initializer:
  """`(key, shape, dtype) -> array`, with a name for the parameter table."""

  name: str
  make: Callable[..., Array]

  def __call__(self, key, shape, dtype) -> Array:
    return self.make(key, shape, dtype)

  def __str__(self):
    return self.name


# The initializer of a kernel, as a function of its input and output axes.
Factory = Callable[[Axes, Axes], Initializer]


def normal(stddev: NonNegativeFloat = 0.02) -> Factory:
  """N(0, stddev²); GPT-2 and BERT use 0.02."""
  return lambda inputs, outputs: Initializer(f'normal({stddev})', nn.initializers.normal(stddev))


def truncated_normal(stddev: NonNegativeFloat = 0.02) -> Factory:
  """N(0, stddev²) truncated at two standard deviations."""
  return lambda inputs, outputs: Initializer(
    f'truncated_normal({stddev})', nn.initializers.truncated_normal(stddev)
  )


def xavier_uniform(scale: PositiveFloat = 1.0) -> Factory:
  """U(±√(6·scale / (fan_in + fan_out))) (Glorot & Bengio 2010, eq. 16)."""
  return _scaled(f'xavier_uniform({scale})', scale, 'fan_avg', 'uniform')


def lecun_normal(scale: PositiveFloat = 1.0) -> Factory:
  """Truncated N(0, scale / fan_in) (LeCun et al. 1998, §4.6)."""
  return _scaled(f'lecun_normal({scale})', scale, 'fan_in', 'truncated_normal')


def _scaled(name, scale, mode, distribution) -> Factory:
  return lambda inputs, outputs: Initializer(
    name, nn.initializers.variance_scaling(scale, mode, distribution, in_axis=inputs, out_axis=outputs)
  )


def scale_initializer(factory: Factory, by: float) -> Factory:
  """The same distribution times `by`."""

  def make(inputs, outputs):
    initializer = factory(inputs, outputs)
    return Initializer(f'{initializer} · {by:.4g}', lambda *args: by * initializer(*args))

  return make


def uniform(low: float, high: float) -> Initializer:
  """U(low, high)."""
  return Initializer(
    f'uniform({low:.4g}, {high:.4g})',
    lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, low, high),
  )


zeros = Initializer('zeros', nn.initializers.zeros)
ones = Initializer('ones', nn.initializers.ones)

INITIALIZERS = {f.__name__: f for f in (normal, truncated_normal, xavier_uniform, lecun_normal)}
