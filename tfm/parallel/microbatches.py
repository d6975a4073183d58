"""Splits a batch into microbatches, and joins them."""

import jax

from tfm.parallel.sharding import shard
from tfm.shapes import Array


def split_into_microbatches(x: Array, n: int) -> Array:
  """[B, …] → [n, B/n, …], microbatch i has the rows i, i + n, …, so that every device keeps its rows."""
  x = x.reshape(x.shape[0] // n, n, *x.shape[1:]).swapaxes(0, 1)
  return jax.vmap(lambda rows: shard(rows, 'batch', *[None] * (rows.ndim - 1)))(x)


def join_microbatches(x: Array) -> Array:
  """[n, B/n, …] → [B, …]; the inverse of `split_into_microbatches`."""
  x = x.swapaxes(0, 1)
  return shard(x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), 'batch', *[None] * (x.ndim - 2))
