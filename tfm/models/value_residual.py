"""Value residuals: every layer mixes its values with those of the first (ResFormer)."""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.initializer import Factory
from tfm.layers.linear import Linear
from tfm.models.stream import Stream
from tfm.shapes import Array, Float
from tfm.spec import Rate


class ValueResidual(nn.Module):
  """v + λ (v_1 - v), where v_1 are the values of the first layer (Zhou et al. 2024, ResFormer).

  Attributes:
    share: λ; None: each token computes 1 - λ = sigmoid(W x + b) for each head from the input x of the layer
      (x-transformers).
    initializer, dtype: of W.
  """

  share: float | None
  initializer: Factory
  dtype: jnp.dtype

  @nn.compact
  def __call__(
    self, v: Float[Array, 'B T K C'], x: Float[Array, 'B T D'], stream: Stream
  ) -> tuple[Float[Array, 'B T K C'], Stream]:
    """The mixed values, v itself in the first layer, and the stream with the values of the first layer."""
    known = stream.known[:, None, None, None]
    first = jnp.where(known, stream.values, v)
    share = self.share
    if share is None:
      gate = Linear(
        (x.shape[-1], v.shape[2]), ('embed', 'kv_heads'), self.initializer, dtype=self.dtype, name='gate'
      )
      share = 1 - nn.sigmoid(gate(x).astype(jnp.float32))[..., None]
    mixed = v + share * (first.astype(jnp.float32) - v.astype(jnp.float32))
    stream = stream.replace(values=first, known=jnp.ones_like(stream.known))
    return mixed.astype(v.dtype), stream


@dataclasses.dataclass(frozen=True)
class Constant:
  """λ is the same number everywhere."""

  share: Rate = 0.5


@dataclasses.dataclass(frozen=True)
class Gated:
  """λ depends on the token."""

  share: ClassVar[None] = None


VALUE_RESIDUALS = {'constant': Constant, 'gated': Gated}
