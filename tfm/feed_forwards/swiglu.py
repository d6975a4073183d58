"""The gated MLP with a SiLU."""

from tfm.feed_forwards._mlp import MLP
from tfm.layers.activation import ACTIVATIONS


class SwiGLU(MLP):
  """(silu(x W) ⊙ x U) V (Shazeer 2020, eq. 6), as in LLaMA (Touvron et al. 2023)."""

  activation = staticmethod(ACTIVATIONS['silu'])
  is_gated = True
