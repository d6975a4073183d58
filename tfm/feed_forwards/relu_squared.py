"""The MLP with a squared ReLU."""

from tfm.feed_forwards._mlp import MLP
from tfm.layers.activation import ACTIVATIONS


class ReLUSquared(MLP):
  """relu(x W + b)² V + c (So et al. 2021, Primer, §4.1), as in Nemotron-4 (Parmar et al. 2024)."""

  activation = staticmethod(ACTIVATIONS['relu_squared'])
