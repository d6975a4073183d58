"""A convolution over neighbouring tokens beside the whole block."""

import dataclasses

import jax.numpy as jnp

from tfm.layers.activation import ACTIVATIONS
from tfm.layers.initializer import uniform
from tfm.layers.linear import Linear
from tfm.residuals.protocol import Residual
from tfm.shapes import Array, Float, Int
from tfm.spec import Size


@dataclasses.dataclass(frozen=True)
class Convolved(Residual):
  """norm(block(x) + activation(convolution(x))), where block(x) adds one branch after another, each with
  a norm after it:

    convolution(x)_t = Σ_k W_k x_{t + k - (taps - 1) / 2} + b

  Neighbours of other documents count as zeros. Weights start from U(±1/√(taps · D)). The larger models of
  DeBERTa-v2 have it in their first layer (He et al. 2021, released code: "nGiE").

  Attributes:
    taps: how many tokens are weighed, an odd number: the token itself is in their middle.
    activation: one of `tfm.layers.activation.ACTIVATIONS`.
  """

  taps: Size = 3
  activation: str = 'tanh'

  placements = ('post',)
  looks_ahead = True

  def __post_init__(self):
    if self.taps % 2 == 0:
      raise ValueError(f'taps={self.taps!r} has no middle; use an odd number, such as {self.taps + 1}')
    if self.activation not in ACTIVATIONS:
      raise ValueError(f'activation={self.activation!r} is not known; use one of {", ".join(ACTIVATIONS)}')

  def __call__(self, block, branches, x, context):
    y = x
    for name, f in branches.items():
      y = block.norm(name=f'{name}_norm')(y + block.branch(name, f, y, context))
    bound = (self.taps * x.shape[-1]) ** -0.5
    z = Linear(
      (self.taps, x.shape[-1], x.shape[-1]),
      ('taps', 'embed', 'mlp'),
      lambda inputs, outputs: uniform(-bound, bound),
      contracted_axes=2,
      dtype=x.dtype,
      name='convolution',
    )(gather_neighbours(x, context.segments, self.taps))
    z = ACTIVATIONS[self.activation](block.apply_dropout(z, context))
    return block.norm(name='convolution_norm')(y + z)


def gather_neighbours(
  x: Float[Array, 'B T D'], segments: Int[Array, 'B T'], taps: int
) -> Float[Array, 'B T K D']:
  """The K tokens around each token of a row, zeros for those of other documents."""
  T, reach = x.shape[1], (taps - 1) // 2
  wide = jnp.pad(x, ((0, 0), (reach, reach), (0, 0)))
  of = jnp.pad(segments, ((0, 0), (reach, reach)))
  return jnp.stack(
    [jnp.where((of[:, k : k + T] == segments)[..., None], wide[:, k : k + T], 0) for k in range(taps)], 2
  )
