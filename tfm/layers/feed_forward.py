"""Position-wise feed-forward layers."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.initializer import Factory
from tfm.layers.linear import Linear
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Float


class FeedForward(nn.Module):
  """act(x W + b) V + c (Vaswani et al. 2017, §3.3), or gated: (act(x W) ⊙ x U) V (Shazeer 2020).

  Attributes:
    width: D; hidden: F.
    activation: of the hidden layer; gated: whether a second projection multiplies it.
    bias, initializer, output_initializer, dtype: of the projections.
  """

  width: int
  hidden: int
  activation: str
  gated: bool
  bias: bool
  initializer: Factory
  output_initializer: Factory
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, x: Float[Array, 'B T D']) -> Float[Array, 'B T D']:
    def rise(name):
      return Linear((self.width, self.hidden), ('embed', 'mlp'), self.initializer,
                    bias=self.bias, dtype=self.dtype, name=name)(x)
    y = ACTIVATIONS[self.activation](rise('up'))
    if self.gated:
      y = y * rise('gate')
    y = shard(y, 'batch', 'length', 'mlp')
    return Linear((self.hidden, self.width), ('mlp', 'embed'), self.output_initializer,
                  bias=self.bias, dtype=self.dtype, name='down')(y)


ACTIVATIONS = {
  'relu': jax.nn.relu,
  'gelu': lambda x: jax.nn.gelu(x, approximate=False),
  'gelu_tanh': lambda x: jax.nn.gelu(x, approximate=True),
  'silu': jax.nn.silu,
}
# name → (activation, gated): `geglu` is Shazeer's GELU gate, `swiglu` his Swish₁ gate.
FEED_FORWARDS = {
  'relu': ('relu', False),
  'gelu': ('gelu', False),
  'gelu_tanh': ('gelu_tanh', False),
  'geglu': ('gelu', True),
  'swiglu': ('silu', True),
}
