"""The gated MLP with the tanh approximation of GELU."""

from tfm.feed_forwards._mlp import MLP
from tfm.layers.activation import ACTIVATIONS


class GEGLUTanh(MLP):
  """(gelu(x W) ⊙ x U) V with the tanh approximation of GELU (Shazeer 2020), as in T5 1.1 and Gemma."""

  activation = staticmethod(ACTIVATIONS['gelu_tanh'])
  is_gated = True
