"""What state space mixers share: where documents begin, a recurrence by chunks, steps of time and rates of
decay.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from tfm.layers.initializer import Initializer
from tfm.shapes import Array, Bool, Float, Int, PyTree


def beginnings(
  segments: Int[Array, 'B T'], before: Int[Array, 'B']
) -> tuple[Bool[Array, 'B T'], Int[Array, 'B']]:
  """Which tokens are the first of their document, and whose state is held after the last one.

  `before` is the document of the last token before these, 0 for none. Padding is no document: the
  state that it is handed belongs to whom it belonged.
  """
  segments = jnp.concatenate([before[:, None], segments], 1)
  at = jax.lax.cummax(jnp.where(segments > 0, jnp.arange(segments.shape[1])[None], 0), axis=1)
  held = jnp.take_along_axis(segments, at, 1)
  return held[:, 1:] != held[:, :-1], held[:, -1]


def by_chunks(
  step: Callable, state: PyTree, inputs: PyTree, chunk: int
) -> tuple[PyTree, Float[Array, 'B T ...']]:
  """`step(state, inputs of a chunk) -> state, outputs of the chunk`, over the length, from chunk to chunk.

  The backward pass keeps the state between chunks and computes what is inside of them again. Chunks
  are of one size, at most `chunk`; the last is filled up with zeros, which the step must take for
  tokens that change nothing.
  """
  T = jax.tree.leaves(inputs)[0].shape[1]
  count = -(-T // chunk)
  size = -(-T // count)

  def cut(x):
    x = jnp.pad(x, ((0, 0), (0, count * size - T), *((0, 0),) * (x.ndim - 2)))
    return x.reshape(x.shape[0], count, size, *x.shape[2:]).swapaxes(0, 1)

  state, y = jax.lax.scan(jax.checkpoint(step, prevent_cse=False), state, jax.tree.map(cut, inputs))
  return state, y.swapaxes(0, 1).reshape(y.shape[1], count * size, *y.shape[3:])[:, :T]


def step_bias(low: float = 1e-3, high: float = 1e-1) -> Initializer:
  """b such that softplus(b) is log-uniform from `low` to `high` (Gu & Dao 2023, §3.6)."""

  def make(key, shape, dtype):
    steps = jnp.exp(jax.random.uniform(key, shape, dtype, math.log(low), math.log(high)))
    return steps + jnp.log(-jnp.expm1(-steps))

  return Initializer(f'softplus⁻¹(log-uniform({low}, {high}))', make)


def segment_sums(x: Float[Array, '... T']) -> Float[Array, '... T S']:
  """Σ_{s<r≤t} x_r for s ≤ t: sums of their own, as differences of sums from the start would cancel."""
  T = x.shape[-1]
  later = jnp.tril(jnp.ones((T, T), bool), -1)
  return jnp.cumsum(jnp.where(later.reshape((1,) * (x.ndim - 1) + (T, T)), x[..., None], 0), -2)


# log(-A) of one rate of decay a head (Dao & Gu 2024, Mamba-2, its code).
LOG_RATES = Initializer(
  'log(uniform(1, 16))', lambda key, shape, dtype: jnp.log(jax.random.uniform(key, shape, dtype, 1, 16))
)
