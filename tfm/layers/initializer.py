"""Initializers by name; they know the contracted axes, so that fans are correct at any rank."""

import dataclasses
import functools
import math
from collections.abc import Callable

import flax.linen as nn
import jax

from tfm.shapes import Array
from tfm.spec import NonNegativeFloat, PositiveFloat


Axes = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Initializer:
  """`(key, shape, dtype) -> array`, with a name for the parameter table.

  Attributes:
    inputs, outputs: the axes of a kernel that are contracted with the input, and the others.
    fan: what the variance is divided by: 'fan_in', 'fan_avg' or '' (nothing).
    adjust: (values, logical axes, input axes) → the values that `parametrization.py` wants; None: the same.
  """

  name: str
  make: Callable[..., Array]
  inputs: Axes = ()
  outputs: Axes = ()
  fan: str = ''
  adjust: Callable[[Array, tuple[str, ...], Axes], Array] | None = None

  def __call__(self, key, shape, dtype) -> Array:
    return self.make(key, shape, dtype)

  def __str__(self):
    return self.name


@dataclasses.dataclass(frozen=True)
class Factory:
  """The initializer of a kernel, as a function of its input and its output axes."""

  make: Callable[[Axes, Axes], Initializer]

  def __call__(self, inputs: Axes, outputs: Axes) -> Initializer:
    return self.make(inputs, outputs)


def as_factory(initializer: Factory | Callable[..., Array]) -> Factory:
  """A factory as it is; or of a Flax initializer, `(key, shape, dtype) -> array`, which then initializes the
  matrix of all input rows and all output columns, as in Flax's DenseGeneral.
  """
  if isinstance(initializer, Factory):
    return initializer

  def make(inputs, outputs):
    def draw(key, shape, dtype):
      rows, columns = (math.prod(shape[axis] for axis in axes) for axes in (inputs, outputs))
      return initializer(key, (rows, columns), dtype).reshape(shape)

    return Initializer(getattr(initializer, '__name__', type(initializer).__name__), draw, inputs, outputs)

  return Factory(make)


def normal(stddev: NonNegativeFloat = 0.02) -> Factory:
  """N(0, stddev²); GPT-2 and BERT use 0.02."""
  make = nn.initializers.normal(stddev)
  return Factory(functools.partial(Initializer, f'normal({stddev})', make))


def truncated_normal(stddev: NonNegativeFloat = 0.02) -> Factory:
  """N(0, stddev²) truncated at two standard deviations."""
  make = nn.initializers.truncated_normal(stddev)
  return Factory(functools.partial(Initializer, f'truncated_normal({stddev})', make))


def xavier_uniform(scale: PositiveFloat = 1.0) -> Factory:
  """U(±√(6·scale / (fan_in + fan_out))) (Glorot & Bengio 2010, eq. 16)."""
  return _scaled(f'xavier_uniform({scale})', scale, 'fan_avg', 'uniform')


def lecun_normal(scale: PositiveFloat = 1.0) -> Factory:
  """Truncated N(0, scale / fan_in) (LeCun et al. 1998, §4.6)."""
  return _scaled(f'lecun_normal({scale})', scale, 'fan_in', 'truncated_normal')


def _scaled(name, scale, mode, distribution) -> Factory:
  scaling = functools.partial(nn.initializers.variance_scaling, scale, mode, distribution)
  return Factory(
    lambda inputs, outputs: Initializer(
      name, scaling(in_axis=inputs, out_axis=outputs), inputs, outputs, fan=mode
    )
  )


def scale_initializer(factory: Factory, by: float) -> Factory:
  """The same distribution times `by`."""
  if by == 1:
    return factory

  def make(inputs, outputs):
    initializer = factory(inputs, outputs)
    name, make = f'{initializer} · {by:.4g}', lambda *args: by * initializer(*args)
    return dataclasses.replace(initializer, name=name, make=make)

  return Factory(make)


def uniform(low: float, high: float) -> Initializer:
  """U(low, high)."""
  return Initializer(
    f'uniform({low:.4g}, {high:.4g})',
    lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, low, high),
  )


def constant(value: float) -> Initializer:
  """The same value everywhere."""
  return Initializer(f'constant({value:.4g})', nn.initializers.constant(value))


zeros = Initializer('zeros', nn.initializers.zeros)
ones = Initializer('ones', nn.initializers.ones)

INITIALIZERS = {f.__name__: f for f in (normal, truncated_normal, xavier_uniform, lecun_normal)}
