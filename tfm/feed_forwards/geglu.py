"""The gated MLP with a GELU."""

from tfm.feed_forwards._mlp import MLP
from tfm.layers.activation import ACTIVATIONS


class GEGLU(MLP):
  """(gelu(x W) ⊙ x U) V with the exact GELU (Shazeer 2020, eq. 6)."""

  activation = staticmethod(ACTIVATIONS['gelu'])
  is_gated = True
