"""Reads a text from one vector: the decoder behind the last token in MAD's compression task."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.initializer import Factory
from tfm.layers.linear import Linear
from tfm.layers.rotary import angles, frequencies
from tfm.mixers.protocol import Context
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Float


class Reconstruction(nn.Module):
  """y_t = norm(f(f(z + PE(t)))) with f(x) = gelu(W norm(x) + b), where z is the hidden state of the last
  token of the row and PE are sinusoids (Poli et al. 2024, MAD, §3.1 and its code, whose sinusoids end at
  another wavelength).

  No token depends on another one here: z alone holds the text.

  Attributes:
    norm: a factory.
    width: D.
    initializer, dtype: of W.
  """

  norm: Callable
  width: int
  initializer: Factory
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, x: Float[Array, 'B T D'], context: Context) -> Float[Array, 'B T D']:
    """The states from which the output layer computes the logits of the token that is the target at t."""
    last = jnp.maximum((context.segments > 0).sum(1) - 1, 0)
    z = jnp.take_along_axis(x, last[:, None, None], axis=1)
    angle = angles(context.positions, frequencies(10_000.0, self.width))
    unpaired = jnp.zeros((*context.positions.shape, self.width % 2))
    y = z + jnp.concatenate([jnp.sin(angle), jnp.cos(angle), unpaired], -1).astype(self.dtype)
    for i in range(2):
      y = self.norm(name=f'norm_{i}')(shard(y, 'batch', 'length', 'embed'))
      project = Linear(
        (self.width, self.width),
        ('embed', 'mlp'),
        self.initializer,
        bias=True,
        dtype=self.dtype,
        name=f'project_{i}',
      )
      y = jax.nn.gelu(project(y), approximate=False)
    return self.norm(name='norm')(shard(y, 'batch', 'length', 'embed'))
