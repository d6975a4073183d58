"""What blocks pass on besides the residual stream."""

import jax.numpy as jnp
from flax import struct

from tfm.parallel.sharding import shard
from tfm.shapes import Array, Bool, Float, PyTree


@struct.dataclass
class Stream:
  """The residual stream, and what later layers read of earlier ones.

  Attributes:
    x: the residual stream.
    values: of the first layer, for value residuals; None: there are none.
    known: whether the first layer has been passed.
    keys: a `TokenCache` with keys and values of the last layer that had its own, for layers without; None:
      all have their own.
  """

  x: Float[Array, 'B T ...']
  values: Float[Array, 'B T K C'] | None = None
  known: Bool[Array, 'B'] | None = None
  keys: PyTree = None

  @classmethod
  def start(cls, x: Float[Array, 'B T ...'], values: tuple[int, int] | None, keys: PyTree) -> 'Stream':
    """The stream before the first layer; `values`: heads and channels of values."""
    if values:
      first = shard(jnp.zeros((*x.shape[:2], *values), x.dtype), 'batch', 'length', 'kv_heads', 'kv')
      return cls(x, first, jnp.zeros(len(x), bool), keys)
    return cls(x, keys=keys)
