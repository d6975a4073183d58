"""The MLP with a GELU."""

from tfm.feed_forwards._mlp import MLP
from tfm.layers.activation import ACTIVATIONS


class GELU(MLP):
  """gelu(x W + b) V + c with the exact GELU x Φ(x) (Hendrycks & Gimpel 2016), as in BERT."""

  activation = staticmethod(ACTIVATIONS['gelu'])
