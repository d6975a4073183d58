"""Learning-rate schedules: a factor in steps, counted from 1, times the peak; all warm up linearly."""

from collections.abc import Callable
from typing import Annotated

import jax.numpy as jnp
import numpy as np
from annotated_types import Interval

from tfm.shapes import Array, Float
from tfm.spec import Fraction, NonNegativeInt, build_from_table


# (step from 1, warm-up steps, steps in all, model width) -> factor on the learning rate.
Factor = Callable[[Array, int, int, int], Float[Array, '']]


def noam() -> Factor:
  """D^-0.5 · min(step^-0.5, step · warmup^-1.5) (Vaswani et al. 2017, eq. 3)."""
  return lambda step, warmup, steps, width: (
    width**-0.5 * jnp.minimum(step**-0.5, step * max(warmup, 1) ** -1.5)
  )


def rsqrt(flat: NonNegativeInt = 0) -> Factor:
  """√(n / step) after the first n steps: those of the warm-up, or `flat` steps at 1.

  T5 has no warm-up but 10,000 steps at 1 (Raffel et al. 2020, §3.1.2: 1/√max(step, 10^4), here scaled to peak
  at 1).
  """
  return lambda step, warmup, steps, width: (
    _warm(step, warmup) * jnp.sqrt(max(flat, warmup, 1) / jnp.maximum(step, max(flat, warmup, 1)))
  )


def constant() -> Factor:
  """1 after the warm-up."""
  return lambda step, warmup, steps, width: _warm(step, warmup)


def cosine(floor: Fraction = 0.1) -> Factor:
  """From 1 down to `floor` along half a cosine (Loshchilov & Hutter 2017, eq. 5)."""
  return lambda step, warmup, steps, width: (
    _warm(step, warmup) * (floor + (1 - floor) * 0.5 * (1 + jnp.cos(jnp.pi * _progress(step, warmup, steps))))
  )


def linear(floor: Fraction = 0.0) -> Factor:
  """From 1 down to `floor` along a line."""
  return lambda step, warmup, steps, width: (
    _warm(step, warmup) * (1 - (1 - floor) * _progress(step, warmup, steps))
  )


def wsd(decay: Annotated[float, Interval(gt=0, le=1)] = 0.2, floor: Fraction = 0.0) -> Factor:
  """Warm-up, stable, decay: 1 until the last share `decay` of the steps, then a line to `floor`
  (Hu et al. 2024, MiniCPM, §4.2)."""
  return lambda step, warmup, steps, width: (
    _warm(step, warmup) * (1 - (1 - floor) * jnp.clip((step - (1 - decay) * steps) / (decay * steps), 0, 1))
  )


def _warm(step, warmup):
  return jnp.minimum(1.0, step / max(warmup, 1))


def _progress(step, warmup, steps):
  return jnp.clip((step - warmup) / max(steps - warmup, 1), 0, 1)


SCHEDULES = {f.__name__: f for f in (noam, rsqrt, constant, cosine, linear, wsd)}


def schedule(factor: Factor, peak: float, warmup: int, steps: int, width: int) -> Callable[[Array], Array]:
  """Updates made so far → learning rate of the next one (optax counts from 0)."""
  return lambda count: peak * factor(jnp.asarray(count + 1, jnp.float32), warmup, steps, width)


def learning_rates(
  peak: float, warmup: int, text: str, steps: int, width: int, count: int
) -> Float[np.ndarray, 'count']:
  """The learning rates of the first `count` steps under a schedule of so many `steps`, by its spec."""
  rate = schedule(build_from_table(text, SCHEDULES), peak, warmup, steps, width)
  return np.asarray(rate(np.arange(count)))
