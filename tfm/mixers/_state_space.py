"""Shared by state space mixers: document boundaries, recurrences over chunks, initializers of time steps and
decays.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from tfm.layers.checkpoint_names import name_states
from tfm.layers.initializer import Initializer
from tfm.shapes import Array, Bool, Float, Int, PyTree


def find_document_starts(
  segments: Int[Array, 'B T'], before: Int[Array, 'B']
) -> tuple[Bool[Array, 'B T'], Int[Array, 'B']]:
  """Whether each token is the first of its document, and the document of the state after the last token.

  `before` is the document of the last token before these, 0 for none. Padding leaves the state and its
  document unchanged.
  """
  segments = jnp.concatenate([before[:, None], segments], 1)
  at = jax.lax.cummax(jnp.where(segments > 0, jnp.arange(segments.shape[1])[None], 0), axis=1)
  held = jnp.take_along_axis(segments, at, 1)
  return held[:, 1:] != held[:, :-1], held[:, -1]


def scan_chunks(
  step: Callable, state: PyTree, inputs: PyTree, chunk: int
) -> tuple[PyTree, Float[Array, 'B T ...']]:
  """`step(state, inputs of a chunk) -> state, outputs of the chunk`, scanned over the chunks of a row.

  The backward pass stores the state between chunks and recomputes the rest. Chunks have equal size, at most
  `chunk`; the last is padded with zeros, which must leave the state unchanged.
  """
  T = jax.tree.leaves(inputs)[0].shape[1]
  count = -(-T // chunk)
  size = -(-T // count)

  def split(x):
    x = jnp.pad(x, ((0, 0), (0, count * size - T), *((0, 0),) * (x.ndim - 2)))
    return x.reshape(x.shape[0], count, size, *x.shape[2:]).swapaxes(0, 1)

  step = jax.checkpoint(step, prevent_cse=False)
  state, y = jax.lax.scan(
    lambda state, inputs: name_states(step(state, inputs)), state, jax.tree.map(split, inputs)
  )
  return state, y.swapaxes(0, 1).reshape(y.shape[1], count * size, *y.shape[3:])[:, :T]


def step_bias(low: float = 1e-3, high: float = 1e-1) -> Initializer:
  """b such that softplus(b) is log-uniform from `low` to `high` (Gu & Dao 2023, §3.6)."""

  def make(key, shape, dtype):
    steps = jnp.exp(jax.random.uniform(key, shape, dtype, math.log(low), math.log(high)))
    return steps + jnp.log(-jnp.expm1(-steps))

  return Initializer(f'softplus⁻¹(log-uniform({low}, {high}))', make)


def segment_sums(x: Float[Array, '... T']) -> Float[Array, '... T S']:
  """Σ_{s<r≤t} x_r for s ≤ t: summed directly, as differences of cumulative sums would cancel."""
  T = x.shape[-1]
  later = jnp.tril(jnp.ones((T, T), bool), -1)
  return jnp.cumsum(jnp.where(later.reshape((1,) * (x.ndim - 1) + (T, T)), x[..., None], 0), -2)


# log(-A) of one rate of decay a head (Dao & Gu 2024, Mamba-2, its code).
LOG_RATES = Initializer(
  'log(uniform(1, 16))', lambda key, shape, dtype: jnp.log(jax.random.uniform(key, shape, dtype, 1, 16))
)
