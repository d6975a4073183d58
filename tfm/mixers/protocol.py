"""The mixer slot: how tokens hear of each other."""

from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from flax import struct

from tfm.layers.initializer import Factory
from tfm.shapes import Array, Float, Int


@struct.dataclass
class Context:
  """What travels beside the activations.

  Attributes:
    positions: of each token in its document.
    segments: which document of the row a token belongs to; 0 is padding.
    train: whether dropout is on.
  """

  positions: Int[Array, 'B T']
  segments: Int[Array, 'B T']
  train: bool = struct.field(pytree_node=False, default=False)

  @classmethod
  def whole(cls, tokens: Int[Array, 'B T'], train: bool = False) -> 'Context':
    """Rows that hold one document each, from position 0, without padding."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return cls(positions, jnp.ones_like(positions), train)


class Mixer(nn.Module):
  """`(x, memory, context, cache) -> y, cache`: self-attention and everything that can stand for it.

  Without a cache it is the training form: all of x at once. With one it is the step form: x is what
  is new, the cache is what came before, and the cache that comes back includes x. A mixer that holds
  nothing for `memory` (cross-attention) refuses it.

  Attributes:
    width, heads, kv_heads, head_width: D, H, K, C.
    bias: whether projections have one.
    dropout: rate on the mixing weights.
    initializer, output_initializer: of the projections in, and of the one out.
    dtype: compute type.
    examples: specs that the conformance suite tries; a file whose bare name is a spec needs none.
  """

  examples: ClassVar[tuple[str, ...]] = ()

  width: int
  heads: int
  kv_heads: int
  head_width: int
  bias: bool
  dropout: float
  initializer: Factory
  output_initializer: Factory
  dtype: jnp.dtype

  def check(self) -> None:
    """Raises ValueError, before anything is compiled, for what the mixer cannot honour."""

  @nn.nowrap
  def init_cache(self, batch: int, length: int) -> Any:
    """An empty cache for `batch` sequences of up to `length` tokens; touches no parameters."""
    raise NotImplementedError(f'{type(self).__name__} must say what decoding remembers')

  def __call__(
      self, x: Float[Array, 'B T D'], memory: Any, context: Context, cache: Any
  ) -> tuple[Float[Array, 'B T D'], Any]:
    raise NotImplementedError(f'{type(self).__name__} must say how it mixes')
