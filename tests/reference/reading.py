"""One mixer over rows: at once, or through its cache in pieces."""

import jax
import jax.numpy as jnp
import numpy as np


def read(result, params, x, context, pieces=None):
  """(y, the cache after it); `context(part)` is that of a slice of the rows."""
  params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
  B, T, _ = x.shape
  cache, found, start = None if pieces is None else result.init_cache(B, T + 2), [], 0
  for piece in pieces or (T,):
    here = slice(start, start + piece)
    y, cache = jax.jit(result.apply)(
      {'params': params}, jnp.asarray(x[:, here], result.dtype), None, context(here), cache
    )
    found.append(y)
    start += piece
  return np.concatenate(found, 1), cache
