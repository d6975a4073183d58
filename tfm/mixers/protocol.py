"""The mixer slot: token mixing."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from flax import struct

from tfm.layers.canon import pass_through
from tfm.layers.initializer import Factory, as_factory
from tfm.shapes import Array, Bool, Float, Int, PyTree


# The variable collections that hold attention weights, and the logits that they are normalized from.
ATTENTION, ATTENTION_LOGITS = 'attention', 'attention_logits'


@struct.dataclass
class Context:
  """What accompanies the activations of a batch.

  Attributes:
    positions: the position of each token in its document.
    segments: segment ids: the document of the row that a token belongs to; 0 is padding. The tokens of a
      document are contiguous, except for padding.
    prefix: the prefix length of each token's document, for masks that need it; None: unknown.
    position_tables: what each positional scheme computes once for all layers, such as T5's table of logits,
      by its `table_key`.
    lineage: of a tree of tokens, alternatives of which each continues another past: which of a cache of S
      tokens, the new ones included, each new token may see, if mask and segments show them; None: all.
    condition: a vector of each row on which the blocks are conditioned, such as a diffusion model's of time
      and class; None: there is none.
    train: whether dropout is on.
    layout: what is guaranteed of the positions, one of `tfm.masks.protocol.LAYOUTS`.
  """

  positions: Int[Array, 'B T']
  segments: Int[Array, 'B T']
  prefix: Int[Array, 'B T'] | None = None
  position_tables: Mapping[str, PyTree] = struct.field(default_factory=dict)
  condition: Float[Array, 'B D'] | None = None
  lineage: Bool[Array, 'B T S'] | None = None
  train: bool = struct.field(pytree_node=False, default=False)
  layout: str = struct.field(pytree_node=False, default='arbitrary')

  @classmethod
  def contiguous(cls, tokens: Int[Array, 'B T'], train: bool = False) -> 'Context':
    """Rows that hold one document each, from position 0, without padding or prefix."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    ones = jnp.ones_like(positions)
    return cls(positions, ones, ones - 1, train=train, layout='contiguous')


@struct.dataclass
class Memory:
  """Another sequence to attend to: an encoder's output and its context."""

  x: Float[Array, 'B S D']
  context: Context


class Mixer(nn.Module):
  """`(x, memory, context, cache) -> y, cache`: self-attention and everything that can replace it.

  Without a cache x is the whole sequence (training). With a cache x holds the new tokens, the cache the
  earlier ones, and the returned cache includes x (decoding). A mixer without cross-attention rejects
  `memory`.

  Building the config rejects what a mixer has no field or hook for: a `score` or `kernel` other than the
  default, a position hook that the mixer does not call, a mask that it does not support.

  Attributes:
    width, heads, kv_heads, head_width: D, H, K, C.
    bias: whether projections have one.
    dropout: rate of dropout on the mixing weights.
    initializer, output_initializer: of the input projections, and of the output projection; each may be a
      Flax initializer.
    dtype: compute type.
    transform: (name, projected x) → what the block makes of it, for the names of `transformed_shapes`: by a
      Canon layer, or a value residual.
    examples: specs for the conformance suite; not needed if the file name alone is a valid spec.
    supported_masks: mask specs; None: any. A mixer with a field `mask` gets the mask object.
    without_kernels: arguments under which it computes the same without a kernel of its own: where shapes are
      evaluated and products are counted.
    position_hooks: the hooks of a position that it calls: 'rotate', 'bias' (the model calls 'embed').
    supports_decoding: whether it can use a cache.
    supports_packing: whether it separates the documents of a row.
    supports_cross_attention: whether it can attend to a `Memory`.
    supports_grouped_heads: whether several query heads can share a key head; if not, kv_heads must equal
      heads.
    supports_mup: whether its projections and scales follow `layers/parametrization.py` at any width.
    projects_position_table: whether it applies its query and key projections to the table of a position with
      `uses_qk_projections`.
    exposes_attention: whether it has weights of queries over keys, and sows them and their logits
      (`sow_attention`).
  """

  examples: ClassVar[tuple[str, ...]] = ()
  supported_masks: ClassVar[tuple[str, ...] | None] = None
  without_kernels: ClassVar[Mapping[str, Any]] = {}
  position_hooks: ClassVar[frozenset[str]] = frozenset()
  supports_decoding: ClassVar[bool] = True
  supports_packing: ClassVar[bool] = True
  supports_cross_attention: ClassVar[bool] = False
  supports_grouped_heads: ClassVar[bool] = True
  supports_mup: ClassVar[bool] = False
  projects_position_table: ClassVar[bool] = False
  exposes_attention: ClassVar[bool] = False

  width: int
  heads: int
  kv_heads: int
  head_width: int
  bias: bool
  dropout: float
  initializer: Factory
  output_initializer: Factory
  dtype: jnp.dtype
  transform: Callable[[str, Array], Array] = dataclasses.field(default=pass_through, kw_only=True)

  def __post_init__(self):
    self.initializer, self.output_initializer = map(as_factory, (self.initializer, self.output_initializer))
    super().__post_init__()

  def validate(self) -> None:
    """Raises ValueError, before anything is compiled, for settings that the mixer does not support."""

  @nn.nowrap
  def check_memory(self, memory) -> None:
    """Raises ValueError for a memory of a mixer that does not support cross-attention."""
    if memory is not None and not self.supports_cross_attention:
      name = type(self).__module__.rpartition('.')[2]
      raise ValueError(f"mixer='{name}' does not support cross-attention; use 'softmax'")

  @property
  def supports_trees(self) -> bool:
    """Whether it honours `Context.lineage`: a new token depends on cached ones only by attention to them."""
    return False

  @property
  def supports_unit_weights(self) -> bool:
    """Whether weights of unit length suit it: the length of its queries and keys does not matter."""
    return False

  @property
  def position_width(self) -> int:
    """Channels of a head that its position scheme sees."""
    return self.head_width

  @property
  def transformed_shapes(self) -> dict[str, tuple[tuple[int, ...], tuple[str, ...]]]:
    """(shape of a token, its logical axes) of each projection that `transform` applies to, by name."""
    return {}

  @property
  def is_noncausal(self) -> bool:
    """Whether a token may depend on later ones whatever the mask; decoders reject such mixers."""
    return False

  @nn.nowrap
  def sow_attention(self, apply: Callable[[Callable], Float[Array, 'B H T S']]) -> None:
    """Stores the weights before dropout in the collection `ATTENTION`, and their logits in
    `ATTENTION_LOGITS`, if a caller made it mutable.

    `apply` gets `Kernel.attention_weights` or `Kernel.attention_logits` and calls it; so training neither
    computes nor traces them.
    """
    for collection, name in ((ATTENTION, 'weights'), (ATTENTION_LOGITS, 'logits')):
      if self.is_mutable_collection(collection) and not self.is_initializing():
        self.put_variable(collection, name, apply(getattr(self.kernel, f'attention_{name}')))

  @nn.nowrap
  def init_cache(self, batch: int, length: int) -> Any:
    """An empty cache for `batch` sequences of up to `length` tokens; touches no parameters."""
    raise NotImplementedError(f'{type(self).__name__} must define its decoding cache')

  def __call__(
    self, x: Float[Array, 'B T D'], memory: Any, context: Context, cache: Any
  ) -> tuple[Float[Array, 'B T D'], Any]:
    raise NotImplementedError(f'{type(self).__name__} must define how it mixes tokens')
