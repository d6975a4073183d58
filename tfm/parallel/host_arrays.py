"""Arrays on their way from a host to the devices of several processes, and back."""

import jax
import numpy as np
from jax.experimental import multihost_utils

from tfm.shapes import Array, PyTree


def place(x: np.ndarray, where: jax.sharding.Sharding) -> Array:
  """An array on the devices of a sharding, of which every process has the whole on its host.

  Each process sends its devices their parts and nothing else. `jax.device_put` would first compare the copies
  of all processes, for which it gathers them in every one.
  """

  def take(index):
    part = x[index]
    return part if part.size == x.size else part.copy()  # a view would keep the whole in memory

  return jax.make_array_from_callback(x.shape, where, take)


def fetch(tree: PyTree) -> PyTree:
  """The whole of every array on the host, in every process; all must call it, in the same order.

  Arrays of which other processes hold parts are gathered one at a time.
  """

  def fetch_array(x):
    if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
      return np.asarray(x)
    return multihost_utils.process_allgather(x, tiled=True)

  return jax.tree.map(fetch_array, tree)
