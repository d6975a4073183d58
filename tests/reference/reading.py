"""Runs a mixer over rows, whole or in pieces through its cache."""

import jax
import jax.numpy as jnp
import numpy as np


def read(mixer, params, x, make_context, pieces=None):
  """(y, the cache after it); `make_context(part)` returns the context of a slice of the rows."""
  params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
  B, T, _ = x.shape
  cache, outputs, start = None if pieces is None else mixer.init_cache(B, T + 2), [], 0
  for piece in pieces or (T,):
    part = slice(start, start + piece)
    y, cache = jax.jit(mixer.apply)(
      {'params': params}, jnp.asarray(x[:, part], mixer.dtype), None, make_context(part), cache
    )
    outputs.append(y)
    start += piece
  return np.concatenate(outputs, 1), cache
