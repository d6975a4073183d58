"""The MLP with a ReLU."""

from tfm.feed_forwards._mlp import MLP
from tfm.layers.activation import ACTIVATIONS


class ReLU(MLP):
  """relu(x W + b) V + c (Vaswani et al. 2017, §3.3)."""

  activation = staticmethod(ACTIVATIONS['relu'])
