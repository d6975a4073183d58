"""The feed-forward slot: what a block applies to each token besides its mixer."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp

import tfm.feed_forwards
from tfm import spec
from tfm.layers.canon import pass_through
from tfm.layers.initializer import Factory, normal
from tfm.shapes import Array, Bool, Float


class FeedForward(nn.Module):
  """A linen module from x [B T D] to [B T D]. The fields below come from the model; a spec sets the others.

  Attributes:
    width: D, the model width.
    hidden: F, the width of the hidden layer.
    bias, initializer, dtype: of the projections.
    output_initializer: of the projections into the residual stream.
    transform: (name, projected x) → what the block makes of it, for the names of `transformed_shapes`: by a
      Canon layer, or a value residual.
    examples: specs that the conformance suite tries; a file whose bare name is a spec needs none.
    is_gated: whether a gate multiplies the hidden layer.
    reads_other_tokens: whether the result of a token depends on others of its row, later ones and those of
      other documents too: not for decoders, nor for rows of several documents.
    is_branch: whether there is a layer at all; without one the block has no norm and no parameters for it.
  """

  examples: ClassVar[tuple[str, ...]] = ()
  is_gated: ClassVar[bool] = False
  reads_other_tokens: ClassVar[bool] = False
  is_branch: ClassVar[bool] = True

  width: int
  hidden: int
  bias: bool
  initializer: Factory
  output_initializer: Factory
  dtype: jnp.dtype
  transform: Callable[[str, Array], Array] = dataclasses.field(default=pass_through, kw_only=True)

  def validate(self) -> None:
    """Raises ValueError for an invalid setting, before anything is compiled."""

  def default_hidden(self) -> int:
    """F if the config leaves it out: 4 D, or 8/3 D rounded up to a multiple of 64 if gated.

    A gate is a third projection, so that both have the same number of parameters (Shazeer 2020, §3.1).
    """
    return -(-8 * self.width // (3 * 64)) * 64 if self.is_gated else 4 * self.width

  @property
  def transformed_shapes(self) -> dict[str, tuple[tuple[int, ...], tuple[str, ...]]]:
    """(shape of a token, its logical axes) of each projection that `transform` applies to, by name."""
    return {}

  def __call__(self, x: Float[Array, 'B T D'], valid: Bool[Array, 'B T']) -> Float[Array, 'B T D']:
    """y [B T D] of x; `valid` is False for padding.

    The result of a token must not depend on padding, nor, without `reads_other_tokens`, on other documents.
    """
    raise NotImplementedError(f'{type(self).__name__} must implement __call__')


def default_hidden(text: str, width: int) -> int:
  """The default F of the feed-forward layer that a spec names, for a model of that width.

  Raises:
    ValueError: if `text` names no feed-forward layer or has an invalid argument.
  """
  factory = spec.factory(
    text,
    tfm.feed_forwards,
    FeedForward,
    width=width,
    hidden=1,
    bias=False,
    initializer=normal(),
    output_initializer=normal(),
    dtype=jnp.float32,
    transform=pass_through,
  )
  return factory().default_hidden()
