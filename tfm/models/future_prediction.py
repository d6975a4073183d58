"""A module that predicts one token further (multi-token prediction of DeepSeek-V3)."""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.initializer import Factory
from tfm.layers.linear import Linear
from tfm.mixers.protocol import Context
from tfm.shapes import Array, Float


class FuturePrediction(nn.Module):
  """h' = block(W [norm(h); norm(e)]), where h predicts some token and e is that token, embedded
  (DeepSeek-AI 2024, DeepSeek-V3, §2.2).

  Attributes:
    block, norm: factories.
    width: D.
    initializer, dtype: of W.
  """

  block: Callable
  norm: Callable
  width: int
  initializer: Factory
  dtype: jnp.dtype

  @nn.compact
  def __call__(
    self, h: Float[Array, 'B T D'], e: Float[Array, 'B T D'], context: Context
  ) -> tuple[Float[Array, 'B T D'], Float[Array, 'B T D']]:
    """h', and h' normalized, from which the output layer computes logits of the next token."""
    x = jnp.concatenate([self.norm(name='hidden_norm')(h), self.norm(name='embedding_norm')(e)], -1)
    project = Linear(
      (2 * self.width, self.width),
      ('embed', 'mlp'),
      self.initializer,
      bias=False,
      dtype=self.dtype,
      name='project',
    )
    h, _ = self.block(name='block_0')(project(x), None, context, None)
    return h, self.norm(name='norm')(h)
