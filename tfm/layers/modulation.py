"""Scales, shifts and gates that a condition of the row sets."""

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.initializer import Factory, zeros
from tfm.layers.linear import Linear
from tfm.shapes import Array, Float


class Modulation(nn.Module):
  """`size` vectors [B 1 D] of a condition, W silu(c) + b, zeros at first.

  Attributes:
    size: how many vectors; dtype: of the compute.
  """

  size: int
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, condition: Float[Array, 'B D']) -> tuple[Float[Array, 'B 1 D'], ...]:
    D = condition.shape[-1]
    project = Linear(
      (D, self.size, D),
      ('embed', 'gates', 'mlp'),
      Factory(lambda inputs, outputs: zeros),
      dtype=self.dtype,
      name='projection',
    )
    return tuple(jnp.moveaxis(project(nn.silu(condition)), 1, 0)[:, :, None])


def modulate(
  x: Float[Array, 'B T D'], shift: Float[Array, 'B 1 D'], scale: Float[Array, 'B 1 D']
) -> Float[Array, 'B T D']:
  """x ⊙ (1 + scale) + shift."""
  return x * (1 + scale) + shift
