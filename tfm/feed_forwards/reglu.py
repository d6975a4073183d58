"""The gated MLP with a ReLU."""

from tfm.feed_forwards._mlp import MLP
from tfm.layers.activation import ACTIVATIONS


class ReGLU(MLP):
  """(relu(x W) ⊙ x U) V (Shazeer 2020, eq. 6)."""

  activation = staticmethod(ACTIVATIONS['relu'])
  is_gated = True
