"""The largest elements of long rows, such as the continuations of all hypotheses of a beam search."""

import jax
import jax.numpy as jnp

from tfm.shapes import Array, Float, Int


BLOCK = 256


def top_k(x: Float[Array, 'B N'], k: int) -> tuple[Float[Array, 'B k'], Int[Array, 'B k']]:
  """The k largest elements of each row, largest first, and their indices, as `jax.lax.top_k`: of equal ones
  those with the smallest indices.

  They are in the k blocks of `BLOCK` neighbours whose maxima are largest. On a CPU `jax.lax.top_k` compares
  one element after another; here it reads the maxima, which are computed in parallel, and these k blocks.
  """
  length = x.shape[-1]
  if length <= k * BLOCK:
    return jax.lax.top_k(x, k)
  padding = [(0, 0), (0, -length % BLOCK)]
  maxima = jnp.pad(x, padding, constant_values=-jnp.inf).reshape(len(x), -1, BLOCK).max(-1)
  blocks = jnp.sort(jax.lax.top_k(maxima, k)[1], -1)  # in order, so that equal elements are, too
  indices = (BLOCK * blocks[:, :, None] + jnp.arange(BLOCK)[None, None]).reshape(len(x), -1)
  values, best = jax.lax.top_k(jnp.take_along_axis(x, indices, -1, mode='fill', fill_value=-jnp.inf), k)
  return values, jnp.take_along_axis(indices, best, -1)
