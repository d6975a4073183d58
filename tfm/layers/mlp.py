"""The position-wise feed-forward layer, plain and gated."""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.activation import ACTIVATIONS
from tfm.layers.initializer import Factory
from tfm.layers.linear import Linear
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Bool, Float


class MLP(nn.Module):
  """act(x W + b) V + c (Vaswani et al. 2017, §3.3), or gated: (act(x W) ⊙ x U) V (Shazeer 2020).

  Attributes:
    form: the activation and whether there is a gate, one of `FORMS`.
    width: D; hidden: F.
    bias, initializer, output_initializer, dtype: of the projections.
  """

  form: str
  width: int
  hidden: int
  bias: bool
  initializer: Factory
  output_initializer: Factory
  dtype: jnp.dtype

  @property
  def gated(self) -> bool:
    return FORMS[self.form][1]

  @nn.compact
  def __call__(self, x: Float[Array, 'B T D'], valid: Bool[Array, 'B T']) -> Float[Array, 'B T D']:
    del valid  # each token goes by itself, padding too

    def rise(name):
      return Linear(
        (self.width, self.hidden),
        ('embed', 'mlp'),
        self.initializer,
        bias=self.bias,
        dtype=self.dtype,
        name=name,
      )(x)

    y = shard(activated(self.form, rise), 'batch', 'length', 'mlp')
    return Linear(
      (self.hidden, self.width),
      ('mlp', 'embed'),
      self.output_initializer,
      bias=self.bias,
      dtype=self.dtype,
      name='down',
    )(y)


def activated(form: str, rise: Callable[[str], Array]) -> Array:
  """act(up), or act(up) ⊙ gate; `rise` makes the projection of a name."""
  act, gated = FORMS[form]
  y = act(rise('up'))
  return y * rise('gate') if gated else y


# name → (activation, gated): `silu` is Marian's swish, `reglu` Shazeer's ReLU gate, `geglu` his GELU gate,
# `geglu_tanh` T5 1.1's, `swiglu` his Swish₁ gate.
FORMS = {
  'relu': (ACTIVATIONS['relu'], False),
  'gelu': (ACTIVATIONS['gelu'], False),
  'gelu_tanh': (ACTIVATIONS['gelu_tanh'], False),
  'quick_gelu': (ACTIVATIONS['quick_gelu'], False),
  'silu': (ACTIVATIONS['silu'], False),
  'reglu': (ACTIVATIONS['relu'], True),
  'geglu': (ACTIVATIONS['gelu'], True),
  'geglu_tanh': (ACTIVATIONS['gelu_tanh'], True),
  'swiglu': (ACTIVATIONS['silu'], True),
}
