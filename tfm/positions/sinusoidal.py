"""Sinusoidal absolute positions."""

import jax.numpy as jnp

from tfm.layers.rotary import angles, frequencies
from tfm.parallel.sharding import shard
from tfm.positions.protocol import Position
from tfm.spec import PositiveFloat


class Sinusoidal(Position):
  """x + PE[position], sines and cosines of geometric wavelengths (Vaswani et al. 2017, §3.5).

    PE(m, 2i) = sin(m θᵢ),  PE(m, 2i + 1) = cos(m θᵢ),  θᵢ = theta^(-2i/D)

  Any position is possible. Angles are accurate in float32 at all of them.

  Attributes:
    theta: base of the wavelengths, from 2π to just below 2π · theta; 10 000 in the paper.
      tensor2tensor and fairseq end at 2π · 10 000 itself: their theta is 10 000^(D / (D - 2)).
    interleaved: whether sines and cosines alternate, as in the paper; otherwise all sines stand
      before all cosines, as in tensor2tensor, fairseq and Marian.

  Raises (from `validate`):
    ValueError: for an odd model width, or theta not above 0.
  """

  theta: PositiveFloat = 10_000.0
  interleaved: bool = True

  def validate(self):
    if self.width % 2:
      raise ValueError(f'pairs sines with cosines, and model.width={self.width} is odd; choose an even one')

  def embed(self, x, positions):
    angle = angles(positions, frequencies(self.theta, self.width))
    waves = jnp.stack([jnp.sin(angle), jnp.cos(angle)], -1 if self.interleaved else -2)
    waves = waves.reshape(*positions.shape, self.width).astype(x.dtype)
    return x + shard(waves, 'batch', 'length', 'embed')
