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
    q: Float[Array, 'B T K G C'], k: Float[Array, 'B S K C'], scale: float
) -> Float[Array, 'B K G T S']:
  """scale · q·k, accumulated in float32."""
  return jnp.einsum('BTKGC,BSKC->BKGTS', q * jnp.asarray(scale, q.dtype), k, preferred_element_type=jnp.float32)
