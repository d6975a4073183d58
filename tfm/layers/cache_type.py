"""In which type keys and values of earlier tokens are cached."""

import jax
import jax.numpy as jnp
from flax import struct

from tfm.shapes import Array, Float, Int


# How keys and values are cached: in the compute type of the model, or in int8.
CACHE_TYPES = 'full', 'int8'
# A context around `init_caches`: one of these.
active_cache_type = jax.make_user_context(CACHE_TYPES[0])


@struct.dataclass
class Rounded:
  """Vectors x ≈ scale · integers, where scale = max |x| / 127: one for each token and head.

  Attributes:
    integers: int8.
    scale: float32.
  """

  integers: Int[Array, 'B K S C']
  scale: Float[Array, 'B K S 1']

  @classmethod
  def of(cls, x: Float[Array, 'B K S C']) -> 'Rounded':
    """The vectors x, rounded; those of zeros remain zeros."""
    x = x.astype(jnp.float32)
    scale = jnp.abs(x).max(-1, keepdims=True) / 127
    return cls(jnp.round(x / jnp.where(scale > 0, scale, 1)).astype(jnp.int8), scale)

  def restore(self, dtype: jnp.dtype) -> Float[Array, 'B K S C']:
    """What was rounded, in its type."""
    return (self.integers * self.scale).astype(dtype)
