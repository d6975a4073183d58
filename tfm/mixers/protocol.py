"""The mixer slot: how tokens hear of each other."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from flax import struct

from tfm.layers.initializer import Factory
from tfm.shapes import Array, Float, Int, PyTree


# The collection of what attention weights tell.
ATTENTION = 'attention'


@struct.dataclass
class Context:
  """What travels beside the activations.

  Attributes:
    positions: of each token in its document.
    segments: which document of the row a token belongs to; 0 is padding. A document is one run of
      tokens, broken by padding at most.
    prefix: how many tokens the prefix of each token's document has, for masks that ask; None: unknown.
    shared: what each positional scheme has in common for all layers, by its `identity`.
    train: whether dropout is on.
    layout: what is promised of the positions, one of `tfm.masks.protocol.LAYOUTS`.
  """

  positions: Int[Array, 'B T']
  segments: Int[Array, 'B T']
  prefix: Int[Array, 'B T'] | None = None
  shared: Mapping[str, PyTree] = struct.field(default_factory=dict)
  train: bool = struct.field(pytree_node=False, default=False)
  layout: str = struct.field(pytree_node=False, default='arbitrary')

  @classmethod
  def whole(cls, tokens: Int[Array, 'B T'], train: bool = False) -> 'Context':
    """Rows that hold one document each, from position 0, without padding or prefix."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    ones = jnp.ones_like(positions)
    return cls(positions, ones, ones - 1, train=train, layout='contiguous')


@struct.dataclass
class Memory:
  """Another sequence, to attend to: what an encoder made of it, and where its tokens stand."""

  x: Float[Array, 'B S D']
  context: Context


class Mixer(nn.Module):
  """`(x, memory, context, cache) -> y, cache`: self-attention and everything that can stand for it.

  Without a cache it is the training form: all of x at once. With one it is the step form: x is what
  is new, the cache is what came before, and the cache that comes back includes x. A mixer that holds
  nothing for `memory` (cross-attention) refuses it.

  What a mixer has no field or no hook for is refused when the config is built: a `score` or `kernel`
  that is not the default, a position that enters where the mixer does not ask, another mask than its own.

  Attributes:
    width, heads, kv_heads, head_width: D, H, K, C.
    bias: whether projections have one.
    dropout: rate on the mixing weights.
    initializer, output_initializer: of the projections in, and of the one out.
    dtype: compute type.
    examples: specs that the conformance suite tries; a file whose bare name is a spec needs none.
    masks: the mask specs that it can honour; None: any. With a field `mask` it is given the object.
    hooks: which of a position's 'rotate' and 'bias' it calls ('embed' is the model's).
    decodes: whether it has a step form; packs: whether it keeps the documents of a row apart.
    crosses: whether it can attend to a `Memory`.
    groups: whether several query heads can share a key head; where not, kv_heads must be heads.
    lends: whether it projects what a position that borrows its projections wants projected.
    tells: whether it has weights of queries on keys, and tells them where it is asked (`tell`).
  """

  examples: ClassVar[tuple[str, ...]] = ()
  masks: ClassVar[tuple[str, ...] | None] = None
  hooks: ClassVar[frozenset[str]] = frozenset()
  decodes: ClassVar[bool] = True
  packs: ClassVar[bool] = True
  crosses: ClassVar[bool] = False
  groups: ClassVar[bool] = True
  lends: ClassVar[bool] = False
  tells: ClassVar[bool] = False

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

  @property
  def positioned(self) -> int:
    """Channels of a head that its position is asked about."""
    return self.head_width

  @property
  def sees_later(self) -> bool:
    """Whether tokens may see later ones whatever the mask says, which a decoder's may not."""
    return False

  @nn.nowrap
  def tell(self, weights: Callable[[], Float[Array, 'B H T S']]) -> None:
    """Puts the weights before dropout into the collection `ATTENTION`, if a caller wants that one.

    They are a function, so that otherwise, as in training, nothing of them is ever computed or traced.
    """
    if self.is_mutable_collection(ATTENTION) and not self.is_initializing():
      self.put_variable(ATTENTION, 'weights', weights())

  @nn.nowrap
  def init_cache(self, batch: int, length: int) -> Any:
    """An empty cache for `batch` sequences of up to `length` tokens; touches no parameters."""
    raise NotImplementedError(f'{type(self).__name__} must say what decoding remembers')

  def __call__(
    self, x: Float[Array, 'B T D'], memory: Any, context: Context, cache: Any
  ) -> tuple[Float[Array, 'B T D'], Any]:
    raise NotImplementedError(f'{type(self).__name__} must say how it mixes')
