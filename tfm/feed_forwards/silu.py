"""The MLP with a SiLU."""

from tfm.feed_forwards._mlp import MLP
from tfm.layers.activation import ACTIVATIONS


class SiLU(MLP):
  """silu(x W + b) V + c (Ramachandran et al. 2017, Swish₁), as in Marian."""

  activation = staticmethod(ACTIVATIONS['silu'])
