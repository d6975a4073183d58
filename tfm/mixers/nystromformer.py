"""Nyströmformer: softmax attention through landmarks, the means of pieces of the sequence."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.initializer import lecun_normal
from tfm.mixers._head_projections import project_from_heads, project_to_heads
from tfm.mixers.protocol import Mixer
from tfm.parallel.sharding import shard, with_logical_axes
from tfm.shapes import Array, Bool, Float
from tfm.spec import Size, SizeOrZero


class Nystromformer(Mixer):
  """The Nyström approximation of softmax attention (Xiong et al. 2021, "Nyströmformer").

    y = softmax(q k̃ᵀ) pinv(softmax(q̃ k̃ᵀ)) softmax(q̃ kᵀ) v + convolution(v),  all products over √C

  q̃ and k̃ are `landmarks` means: token t of the n of a document is in piece ⌊t · landmarks / n⌋, which are the
  paper's pieces of equal length if n is a multiple; pieces without tokens do not count. Time and memory are
  linear in the length. The pseudoinverse is iterated, from Kᵀ divided by the largest column sum of each
  matrix K: Z' = Z (13 I - K Z (15 I - K Z (7 I - K Z))) / 4. It enlarges rounding errors where landmarks are
  much alike.

  Every landmark contains later tokens, so there is no causal form and no decoding, and a row must hold a
  single document.

  Attributes:
    position: factory of this layer's own instance, which rotates before the means; mask: shared, stateless.
    landmarks: number of them, the paper's m.
    iterations: of the pseudoinverse; 6 in the paper.
    taps: of the convolution along the sequence, which each head has one of; an odd number, or 0: none.

  Raises (from `validate`):
    ValueError: for an even number of taps, or dropout, as the weights of pairs are never computed.
  """

  position: Callable
  mask: Callable
  landmarks: Size
  iterations: Size = 6
  taps: SizeOrZero = 0

  # With six iterations rounding is enlarged beyond the tolerance of the conformance suite.
  examples = ('nystromformer(landmarks=3, iterations=3, taps=3)',)
  supported_masks = ('full',)
  position_hooks = frozenset({'rotate'})
  supports_decoding = False
  supports_packing = False
  supports_grouped_heads = False

  def validate(self):
    if self.taps and self.taps % 2 == 0:
      raise ValueError(f'taps={self.taps} has no middle; use an odd number, or 0 for no convolution')
    if self.dropout > 0:
      raise ValueError(
        f'dropout.attention={self.dropout} drops mixing weights, which the Nyström approximation does '
        'not compute; use 0, or dropout.residual'
      )

  @nn.nowrap
  def init_cache(self, batch, length):
    raise ValueError(
      "mixer='nystromformer' averages all tokens before attention, so it cannot decode with a cache; "
      "use 'softmax'"
    )

  @nn.compact
  def __call__(self, x, memory, context, cache):
    self.check_memory(memory)
    if cache is not None:
      self.init_cache(*x.shape[:2])
    q, k, v = (project_to_heads(self, name, 'heads', x) for name in 'qkv')
    q, k = self.position(name='position').rotate(q, k, context.positions, context.positions)
    real = context.segments != 0
    v = jnp.where(real[:, :, None, None], v, 0)
    scale = self.head_width**-0.25
    q, k = (scale * y.astype(jnp.float32) for y in (q, k))
    pieces = find_pieces(real, self.landmarks)
    counts = pieces.sum(1)
    means = pieces / jnp.maximum(counts, 1)[:, None]
    q_means, k_means = (jnp.einsum('BTM,BTHC->BMHC', means, y) for y in (q, k))
    exists = counts > 0
    between = jnp.where(exists[:, None, :, None], attend(q_means, k_means, exists), 0)
    mixed = jnp.einsum('BHMT,BTHC->BHMC', attend(q_means, k, real), v.astype(jnp.float32))
    mixed = invert(between, self.iterations) @ mixed
    y = jnp.einsum('BHTM,BHMC->BTHC', attend(q, k_means, exists), mixed)
    if self.taps:
      y = y + self.convolve(v)
    return project_from_heads(self, shard(y.astype(self.dtype), 'batch', 'length', 'heads', 'kv')), None

  def convolve(self, v):
    """Σ_r w_r v_{t + r - (taps - 1) / 2}, with weights of each head."""
    initializer = with_logical_axes(lecun_normal()((1,), (0,)), ('heads', 'taps'))
    taps = self.param('taps', initializer, (self.heads, self.taps), jnp.float32)
    half = self.taps // 2
    y = jax.lax.conv_general_dilated(
      v.astype(jnp.float32).swapaxes(1, 2),
      taps[:, None, :, None],
      window_strides=(1, 1),
      padding=((half, half), (0, 0)),
      feature_group_count=self.heads,
    )
    return y.swapaxes(1, 2)


def find_pieces(real: Bool[Array, 'B T'], count: int) -> Float[Array, 'B T M']:
  """Whether a token is in each of `count` pieces of the row's document, as 0 or 1."""
  rank, tokens = jnp.cumsum(real, 1) - 1, real.sum(1, keepdims=True)
  piece = rank * count // jnp.maximum(tokens, 1)
  return jax.nn.one_hot(jnp.where(real, piece, -1), count)


def attend(
  q: Float[Array, 'B T H C'], k: Float[Array, 'B S H C'], visible: Bool[Array, 'B S']
) -> Float[Array, 'B H T S']:
  """softmax(q · k) over the visible keys, zero if there are none."""
  visible = visible[:, None, None]
  weights = jax.nn.softmax(jnp.where(visible, jnp.einsum('BTHC,BSHC->BHTS', q, k), -1e30), -1)
  return jnp.where(visible, weights, 0)


def invert(matrix: Float[Array, 'B H M M'], iterations: int) -> Float[Array, 'B H M M']:
  """The pseudoinverse of a matrix whose rows are nonnegative and sum to one, or are zero (alg. 1)."""
  columns = matrix.sum(-2).max(-1)[..., None, None]
  z, identity = matrix.swapaxes(-1, -2) / jnp.maximum(columns, 1e-6), jnp.eye(matrix.shape[-1])[None, None]
  for _ in range(iterations):
    product = matrix @ z
    z = z @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product))) / 4
  return z
