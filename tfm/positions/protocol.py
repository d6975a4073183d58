"""The position slot: the three places where a position can enter a Transformer."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn

from tfm.shapes import Array, Float, Int, PyTree


class Position(nn.Module):
  """A positional scheme; every hook defaults to doing nothing.

  The model calls `embed` once, under the token embedding, and `share` once; every attention layer
  calls `rotate` and `bias` with an instance of its own. The fields below come from the model; a spec
  sets the others.

  Attributes:
    width: D, the model width.
    heads: H, the query heads.
    head_width: C, the channels of one head.
    length: the longest sequence that the run trains on, in tokens.
    examples: specs that the conformance suite tries; a file whose bare name is a spec needs none.
    reads_content: whether the bias depends on the queries and keys themselves.
  """

  examples: ClassVar[tuple[str, ...]] = ()
  reads_content: ClassVar[bool] = False

  width: int
  heads: int
  head_width: int
  length: int

  def check(self) -> None:
    """Raises ValueError, before anything is compiled, for a setting that cannot be honoured."""

  @property
  def reach(self) -> int | None:
    """One more than the last position that the scheme can tell; None where there is no end."""
    return None

  @property
  def borrows(self) -> bool:
    """Whether what is shared is projected as contents are, by the mixer's own projections: `bias` is then given the
    pair that those of queries and of keys make of it, [N H C] and [N K C]."""
    return False

  @classmethod
  def enters(cls) -> frozenset[str]:
    """The hooks that the scheme fills: 'embed', 'rotate', 'bias', or none."""
    return frozenset(
      hook for hook in ('embed', 'rotate', 'bias') if getattr(cls, hook) is not getattr(Position, hook)
    )

  @property
  def identity(self) -> str:
    """Equal where two specs mean the same: the scheme and its own settings, not the block's sizes."""
    surroundings = {field.name for field in dataclasses.fields(Position)}
    own = {
      field.name: getattr(self, field.name)
      for field in dataclasses.fields(self)
      if field.name not in surroundings
    }
    return f'{type(self).__name__}({", ".join(f"{name}={value!r}" for name, value in own.items())})'

  def meaning(self) -> dict[str, Any]:
    """Equal where two compute the same of the same parameters: the block's sizes and its own settings, but not `length`; a
    scheme that looks at it puts here what follows from it."""
    return {
      field.name: getattr(self, field.name)
      for field in dataclasses.fields(self)
      if field.name not in ('length', 'parent', 'name')
    }

  def embed(self, x: Float[Array, 'B T D'], positions: Int[Array, 'B T']) -> Float[Array, 'B T D']:
    """Enters at the embedding."""
    return x

  def rotate(
    self,
    q: Float[Array, 'B T H C'],
    k: Float[Array, 'B S K C'],
    q_positions: Int[Array, 'B T'],
    k_positions: Int[Array, 'B S'],
  ) -> tuple[Float[Array, 'B T H C'], Float[Array, 'B S K C']]:
    """Enters at the queries and keys."""
    return q, k

  def share(self) -> PyTree:
    """What all layers have in common, made once in a model, such as T5's one table; None: nothing."""
    return None

  def bias(self, shared: PyTree) -> Callable | None:
    """Enters at the logits: `(q, k, q_positions, k_positions) -> logits [B K G T S] to add`, or None.

    `shared` is what `share` made, by whatever instance the model holds.

    It is given `q [B K G T C]`, `k [B K S C]`, and positions `[B T]` and `[B S]`.
    A function and not its values, because a blockwise kernel asks block by block; a
    `jax.tree_util.Partial` whose leaves are the learned parameters, so that a kernel with its own
    backward pass can differentiate them.
    """
    return None
