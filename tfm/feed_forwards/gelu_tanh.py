"""The MLP with the tanh approximation of GELU."""

from tfm.feed_forwards._mlp import MLP
from tfm.layers.activation import ACTIVATIONS


class GELUTanh(MLP):
  """gelu(x W + b) V + c with the tanh approximation of GELU (Hendrycks & Gimpel 2016, §2), as in GPT-2."""

  activation = staticmethod(ACTIVATIONS['gelu_tanh'])
