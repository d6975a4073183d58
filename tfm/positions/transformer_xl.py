"""Transformer-XL: relative positions by projected sinusoids of the distance."""

import flax.linen as nn
import jax.numpy as jnp
from jax.tree_util import Partial

from tfm.layers.initializer import normal
from tfm.layers.locations import Locations
from tfm.layers.rotary import angles, frequencies
from tfm.parallel.sharding import with_logical_axes
from tfm.positions.protocol import Position
from tfm.shapes import Array, Float


class TransformerXL(Position):
  """logits += (u · k + (q + v) · W r(q - k)) / √C (Dai et al. 2019, §3.3).

  r(d) = [sin(d ω₁) … sin(d ω_{D/2}), cos(d ω₁) … cos(d ω_{D/2})],  ωᵢ = 10000^(-2(i-1)/D); u and v are
  learned for each head, W is a [D, C] matrix for each head; all of them are separate for every layer. The
  content term q·k/√C is the score's.

  As r(q - k) is r(k) rotated by the angles of q, the whole term is one product of rotated queries [T, D]
  with waves of the keys [S, D]: exact at any distance, without a table of them. It costs H times as much
  as q·k.

  The paper's other half, segment-level recurrence (§3.2), is `config.training.recurrence_length`: rows are
  processed in segments of so many tokens; each attends to earlier segments, as far as the mask allows,
  without gradients. The recurrence ends with the row.

  Raises (from `validate`):
    ValueError: for an odd model width.
  """

  reads_content = True
  has_blockwise_bias = True

  def validate(self):
    if self.width % 2:
      raise ValueError(
        f'sines and cosines take half of the model width each, and model.width={self.width} '
        'is odd; choose an even one'
      )

  @nn.compact
  def bias(self, table):
    heads = self.heads, self.head_width

    def learned(name, axes, shape):
      return self.param(name, with_logical_axes(normal()((0,), (1, 2)), axes), shape, jnp.float32)

    weights = (
      learned('content_bias', ('heads', 'kv'), heads),
      learned('position_bias', ('heads', 'kv'), heads),
      learned('kernel', ('embed', 'heads', 'kv'), (self.width, *heads)),
    )
    return Partial(relative_logits, weights)


def relative_logits(
  weights: tuple[Float[Array, 'H C'], Float[Array, 'H C'], Float[Array, 'D H C']],
  q: Float[Array, 'B K G T C'],
  k: Float[Array, 'B K S C'],
  q_locations: Locations,
  k_locations: Locations,
) -> Float[Array, 'B K G T S']:
  """Both terms, of the weights (u, v, W); products in the type of q and k, sums in float32."""
  u, v, kernel = weights
  B, K, G, T, C = q.shape
  D = kernel.shape[0]

  def product(equation, x, y):
    return jnp.einsum(equation, x.astype(q.dtype), y.astype(q.dtype), preferred_element_type=jnp.float32)

  def waves(positions):
    angle = angles(positions, frequencies(10_000.0, D))
    return jnp.sin(angle), jnp.cos(angle)

  content = product('BKSC,KGC->BKGS', k, u.reshape(K, G, C))
  projected = product('BKGTC,DKGC->BKGTD', q + v.reshape(1, K, G, 1, C), kernel.reshape(D, K, G, C))
  # sin(q - k) and cos(q - k) by angle addition; the factors of the query are multiplied into the query.
  of_sin, of_cos = jnp.split(projected, 2, axis=-1)
  sin, cos = (wave[:, None, None] for wave in waves(q_locations.positions))
  rotated = jnp.concatenate([of_cos * sin - of_sin * cos, of_sin * sin + of_cos * cos], -1)
  keys = jnp.concatenate(waves(k_locations.positions), -1)
  position = product('BND,BSD->BNS', rotated.reshape(B, K * G * T, D), keys).reshape(B, K, G, T, -1)
  return (content[:, :, :, None] + position) * C**-0.5
