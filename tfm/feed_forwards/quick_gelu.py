"""The MLP with the sigmoid approximation of GELU."""

from tfm.feed_forwards._mlp import MLP
from tfm.layers.activation import ACTIVATIONS


class QuickGELU(MLP):
  """x σ(1.702 x) as the activation: the sigmoid approximation of GELU (Hendrycks & Gimpel 2016, §2)."""

  activation = staticmethod(ACTIVATIONS['quick_gelu'])
