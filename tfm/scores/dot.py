"""Scaled dot products."""

import functools

from jax.tree_util import Partial

from tfm.layers.dot_product import scaled_dot
from tfm.scores.protocol import Score


class Dot(Score):
  """q · k / √C (Vaswani et al. 2017, eq. 1).

  Attributes:
    scale: factor on the product; None means 1/√C.
  """

  absorbs_key_projection = True

  scale: float | None = None

  def __call__(self):
    scale = self.head_width**-0.5 if self.scale is None else self.scale
    return Partial(functools.partial(scaled_dot, scale=scale))
