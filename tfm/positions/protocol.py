"""The position slot: the three places where a position can enter a Transformer."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn

from tfm.shapes import Array, Float, Int, PyTree


class Position(nn.Module):
  """A positional scheme; every hook defaults to doing nothing.

  The model calls `embed` once, after the token embedding, and `compute_table` once; every attention layer
  calls `rotate` and `bias` of its own instance. The fields below come from the model; a spec sets the others.

  Attributes:
    width: D, the model width.
    heads: H, the query heads.
    head_width: C, the channels of one head.
    length: the longest sequence that the run trains on, in tokens.
    examples: specs for the conformance suite; not needed if the file name alone is a valid spec.
    reads_content: whether the bias depends on the queries and keys themselves.
    has_blockwise_bias: whether the bias of a block of queries and keys is that block of the bias of all of
      them. False for a bias that needs all keys of a row at once, such as a sum over keys, and for one that
      does not declare it: blockwise kernels reject it.
  """

  examples: ClassVar[tuple[str, ...]] = ()
  reads_content: ClassVar[bool] = False
  has_blockwise_bias: ClassVar[bool] = True

  width: int
  heads: int
  head_width: int
  length: int

  def __init_subclass__(cls, **options):
    if 'bias' in vars(cls) and 'has_blockwise_bias' not in vars(cls):
      cls.has_blockwise_bias = False
    super().__init_subclass__(**options)

  def validate(self) -> None:
    """Raises ValueError, before anything is compiled, for an invalid setting."""

  @property
  def max_positions(self) -> int | None:
    """The number of positions that the scheme can represent; None: unlimited."""
    return None

  @property
  def uses_qk_projections(self) -> bool:
    """Whether the mixer applies its query and key projections to the table: `bias` then gets the pair
    of projected tables, [N H C] and [N K C].
    """
    return False

  @property
  def has_relative_bias(self) -> bool:
    """Whether the bias depends on the head and the distance alone, within one document."""
    return False

  @classmethod
  def active_hooks(cls) -> frozenset[str]:
    """The hooks that the scheme overrides: of 'embed', 'rotate', 'bias'."""
    return frozenset(
      hook for hook in ('embed', 'rotate', 'bias') if getattr(cls, hook) is not getattr(Position, hook)
    )

  @property
  def table_key(self) -> str:
    """Blocks whose positions have equal keys share one table: the scheme and its settings, not the block
    sizes.
    """
    surroundings = {field.name for field in dataclasses.fields(Position)}
    own = {
      field.name: getattr(self, field.name)
      for field in dataclasses.fields(self)
      if field.name not in surroundings
    }
    return f'{type(self).__name__}({", ".join(f"{name}={value!r}" for name, value in own.items())})'

  def fingerprint(self) -> dict[str, Any]:
    """Equal for two instances that compute the same from the same parameters: sizes and settings, not
    `length`; a scheme that depends on `length` adds what follows from it.
    """
    return {
      field.name: getattr(self, field.name)
      for field in dataclasses.fields(self)
      if field.name not in ('length', 'parent', 'name')
    }

  def embed(self, x: Float[Array, 'B T D'], positions: Int[Array, 'B T']) -> Float[Array, 'B T D']:
    """Adds to the embedded tokens."""
    return x

  def rotate(
    self,
    q: Float[Array, 'B T H C'],
    k: Float[Array, 'B S K C'],
    q_positions: Int[Array, 'B T'],
    k_positions: Int[Array, 'B S'],
  ) -> tuple[Float[Array, 'B T H C'], Float[Array, 'B S K C']]:
    """Transforms queries and keys."""
    return q, k

  def compute_table(self) -> PyTree:
    """What all layers share, computed once per model, such as T5's table; None: nothing."""
    return None

  def bias(self, table: PyTree) -> Callable | None:
    """The function `(q, k, q_locations, k_locations) -> [B K G T S]` whose result is added to the logits; or
    None.

    Args:
      table: the result of `compute_table`, by the instance that the model holds.

    The function gets `q [B K G T C]`, `k [B K S C]`, and the `Locations` of queries and keys: their
    positions, and the segments that say which document of a packed row is theirs. Blockwise kernels call it
    block by block, if `has_blockwise_bias`. It is a `jax.tree_util.Partial` whose leaves are the learned
    parameters, so that a kernel with its own backward pass can differentiate them.
    """
    return None
