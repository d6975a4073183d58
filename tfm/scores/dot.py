"""Scaled dot products."""

import functools

from jax.tree_util import Partial

from tfm.layers.dot_product import scaled_dot
from tfm.scores.protocol import Score


class Dot(Score):
  """q · k / √C (Vaswani et al. 2017, eq. 1).

  Attributes:
    scale: factor on the product; None means 1/√C, or the parametrization's.
  """

  absorbs_key_projection = True
  supports_mup = True

  scale: float | None = None

  def __call__(self):
    scales = self.scale, self.default_scale, self.head_width**-0.5
    scale = next(scale for scale in scales if scale is not None)
    return Partial(functools.partial(scaled_dot, scale=scale))
