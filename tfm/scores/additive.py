"""A hidden tanh layer over query and key."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from tfm.layers.float32_gradients import einsum
from tfm.layers.initializer import lecun_normal, normal, scale_initializer
from tfm.parallel.sharding import with_logical_axes
from tfm.scores.protocol import Score
from tfm.shapes import Array, Float
from tfm.spec import Size


class Additive(Score):
  """v · tanh(W q + U k), the alignment model (Bahdanau et al. 2015, app. A.1.2).

  W and U are [C hidden], v is [hidden], shared by all heads of a layer; the paper has one head. Initial
  logits have unit size for any widths, so there is no scale. The hidden values [B K G T S hidden] are summed
  channel by channel in both passes and never stored.

  Attributes:
    width: hidden channels; None means C.

  Raises (from `validate`):
    ValueError: for a width below 1.
  """

  width: Size | None = None

  @nn.compact
  def __call__(self):
    C, hidden = self.head_width, self.head_width if self.width is None else self.width
    projection = with_logical_axes(lecun_normal()((0,), (1,)), ('kv', 'rank'))
    vector = with_logical_axes(scale_initializer(normal(1.0), hidden**-0.5)((0,), ()), ('rank',))
    return Partial(
      additive,
      self.param('query', projection, (C, hidden), jnp.float32),
      self.param('key', projection, (C, hidden), jnp.float32),
      self.param('vector', vector, (hidden,), jnp.float32),
    )


def additive(
  w_q: Float[Array, 'C N'],
  w_k: Float[Array, 'C N'],
  v: Float[Array, 'N'],
  q: Float[Array, 'B K G T C'],
  k: Float[Array, 'B K S C'],
) -> Float[Array, 'B K G T S']:
  """v · tanh(W q + U k) in float32, from products in the type of q and k."""
  q = einsum('BKGTC,CN->NBKGT', q, w_q, jnp.float32)
  k = einsum('BKSC,CN->NBKS', k, w_k, jnp.float32)

  # With one expression for all channels XLA would store the hidden values for the backward pass, and its CPU
  # backend is 25 times slower.
  @jax.checkpoint
  def channel(v, q, k):
    return v * jnp.tanh(q[..., None] + k[:, :, None, None, :])

  def add_channel(logits, arguments):
    return logits + channel(*arguments), None

  return jax.lax.scan(add_channel, channel(v[0], q[0], k[0]), (v[1:], q[1:], k[1:]))[0]
