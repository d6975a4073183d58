"""Gated causal convolutions with growing dilation."""

from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
from annotated_types import Interval
from flax import struct

from tfm.layers.linear import Linear
from tfm.mixers.protocol import Mixer
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Float, Int
from tfm.spec import MAX_SIZE, Size


@struct.dataclass
class Cache:
  """The last non-padding tokens of each row, in order, as many as the taps look back.

  Attributes:
    inputs: of each layer, as many as its own taps look back.
    segments: of as many as the farthest taps look back; 0: no token yet.
  """

  inputs: tuple[Float[Array, 'B S D'], ...]
  segments: Int[Array, 'B S']


class Convolution(Mixer):
  """A stack of gated causal convolutions on a residual stream of its own, then a projection.

    h ← h + (V ∗ h + b) ⊙ σ(W ∗ h + c) for each d of `dilations`        (V ∗ h)_t = Σⱼ V_j h_{t-j·d}

  h starts as x and j runs over `taps`. The gated linear units are those of Dauphin et al. 2017, eq. 1,
  the residuals of their §2; the dilations those of van den Oord et al. 2016 (WaveNet), §2.1, and
  Kalchbrenner et al. 2016 (ByteNet), §3.4. The receptive field has 1 + (taps - 1) · Σ d tokens. As all
  blocks of a pattern are alike, the dilations grow within the mixer and not from block to block.

  Taps count tokens of the document: padding is skipped, and before its first token a document reads zeros.
    The model's heads, kv_heads and head_width describe attention: there are no heads here.

  Attributes:
    taps: of each convolution, in tokens, the token itself among them.
    dilations: tokens from tap to tap, of each layer.

  Raises (from `validate`):
    ValueError: for fewer than two taps, dilations that are no tuple of whole numbers from 1, or dropout,
      as there are no mixing weights to drop.
  """

  taps: Annotated[int, Interval(ge=2, le=MAX_SIZE)] = 3
  dilations: tuple[Size, ...] = (1, 2, 4)

  examples = ('convolution', 'convolution(taps=2, dilations=(3,))')
  supported_masks = ('causal',)
  supports_grouped_heads = False

  def validate(self):
    if not self.dilations:
      raise ValueError('dilations=() must have one number per layer; use (1, 2, 4)')
    if self.dropout > 0:
      raise ValueError(
        f'dropout.attention={self.dropout} drops mixing weights, which a convolution does not '
        'have; use 0, or dropout.residual'
      )

  @property
  def lookbacks(self):
    """How many tokens each layer looks back."""
    return [(self.taps - 1) * d for d in self.dilations]

  @nn.nowrap
  def init_cache(self, batch, length):
    inputs = tuple(
      shard(jnp.zeros((batch, lookback, self.width), self.dtype), 'batch', 'length', 'embed')
      for lookback in self.lookbacks
    )
    return Cache(inputs, shard(jnp.zeros((batch, max(self.lookbacks)), jnp.int32), 'batch', 'length'))

  @nn.compact
  def __call__(self, x, memory, context, cache):
    self.check_memory(memory)
    before = self.init_cache(len(x), 0) if cache is None else cache
    h, segments = x.astype(self.dtype), context.segments
    # Padding moves to the end, where it separates no token from the cache or from the token before it.
    # Without a cache the layout may guarantee that there is no padding between tokens.
    reorders = cache is not None or context.layout == 'arbitrary'
    if reorders:
      order = jnp.argsort(segments == 0, axis=1, stable=True)
      h, segments = rows(h, order), rows(segments, order)
    row = jnp.concatenate([before.segments, segments], 1)
    inputs = []
    for i, (d, lookback) in enumerate(zip(self.dilations, self.lookbacks)):
      inputs.append(jnp.concatenate([before.inputs[i], h], 1))
      taps = window(inputs[-1], row[:, row.shape[1] - inputs[-1].shape[1] :], self.taps, d)
      update = self.convolve(f'value_{i}', taps) * nn.sigmoid(self.convolve(f'gate_{i}', taps))
      h = shard(h + update, 'batch', 'length', 'embed')
    if reorders:
      h = rows(h, jnp.argsort(order, axis=1))
    y = Linear(
      (self.width, self.width),
      ('mlp', 'embed'),
      self.output_initializer,
      bias=self.bias,
      dtype=self.dtype,
      name='out',
    )(h)
    if cache is not None:
      count = (segments > 0).sum(1)
      cache = Cache(
        tuple(latest(x, count, lookback) for x, lookback in zip(inputs, self.lookbacks)),
        latest(row, count, max(self.lookbacks)),
      )
    return shard(y, 'batch', 'length', 'embed'), cache

  def convolve(self, name, taps):
    y = Linear(
      (self.taps, self.width, self.width),
      ('taps', 'embed', 'mlp'),
      self.initializer,
      contracted_axes=2,
      bias=self.bias,
      dtype=self.dtype,
      name=name,
    )(taps)
    return shard(y, 'batch', 'length', 'mlp')


def window(
  x: Float[Array, 'B S D'], segments: Int[Array, 'B S'], taps: int, dilation: int
) -> Float[Array, 'B T taps D']:
  """[b, t, j] = x at j · dilation before token t in its document, else zeros.

  The T tokens are the last ones of S, and (taps - 1) · dilation stand before them.
  """
  T = x.shape[1] - (taps - 1) * dilation

  def back(y, j):
    start = (taps - 1 - j) * dilation
    return y[:, start : start + T]

  return jnp.stack(
    [jnp.where((back(segments, j) == back(segments, 0))[..., None], back(x, j), 0) for j in range(taps)], 2
  )


def latest(x: Array, count: Int[Array, 'B'], length: int) -> Array:
  """The last `length` tokens of each row after `count` new ones: x[b, count[b]:][:length]."""
  return rows(x, count[:, None] + jnp.arange(length)[None])


def rows(x: Array, index: Int[Array, 'B N']) -> Array:
  """x[b, index[b]] of each row b."""
  return jax.vmap(lambda row, at: row.at[at].get(mode='promise_in_bounds', unique_indices=True))(x, index)
