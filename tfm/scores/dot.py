"""Scaled dot products."""

import functools

import jax.numpy as jnp
from jax.tree_util import Partial

from tfm.scores.protocol import Score
from tfm.shapes import Array, Float


class Dot(Score):
  """q · k / √C (Vaswani et al. 2017, eq. 1).

  Attributes:
    scale: factor on the product; 1/√C unless given.
  """

  scale: float | None = None

  def __call__(self):
    scale = self.head_width**-0.5 if self.scale is None else self.scale
    return Partial(functools.partial(scaled_dot, scale=scale))


def scaled_dot(
    q: Float[Array, 'B K G T C'], k: Float[Array, 'B K S C'], scale: float
) -> Float[Array, 'B K G T S']:
  """scale · q·k, accumulated in float32."""
  B, K, G, T, C = q.shape
  # The queries of a group as rows of one matrix: one product for each key head.
  logits = jnp.einsum('BKNC,BKSC->BKNS', (q * jnp.asarray(scale, q.dtype)).reshape(B, K, G * T, C), k,
                      preferred_element_type=jnp.float32)
  return logits.reshape(B, K, G, T, -1)
