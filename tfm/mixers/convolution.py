"""Gated causal convolutions with growing dilation."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from tfm.layers.linear import Linear
from tfm.mixers.protocol import Mixer
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Float, Int


@struct.dataclass
class Cache:
  """What the taps reach back to: of each row the last tokens that are no padding, the latest last.

  Attributes:
    inputs: of each layer, as many as its own taps reach.
    segments: of as many as the farthest taps reach; 0: no token yet.
  """

  inputs: tuple[Float[Array, 'B S D'], ...]
  segments: Int[Array, 'B S']


class Convolution(Mixer):
  """A stack of gated causal convolutions on a residual stream of its own, then a projection.

    h ← h + (V ∗ h + b) ⊙ σ(W ∗ h + c) for each d of `dilations`        (V ∗ h)_t = Σⱼ V_j h_{t-j·d}

  h starts as x and j runs over `taps`. The gated linear units are those of Dauphin et al. 2017, eq. 1,
  the residuals of their §2; the dilations those of van den Oord et al. 2016 (WaveNet), §2.1, and
  Kalchbrenner et al. 2016 (ByteNet), §3.4. A token hears of 1 + (taps - 1) · Σ d tokens. As all blocks
  of a pattern are alike, the dilations grow within the mixer and not from block to block.

  Taps count tokens of the document: padding is passed over, and before its first token a document reads
  zeros. The model's heads, kv_heads and head_width describe attention: there are no heads here.

  Attributes:
    taps: of each convolution, in tokens, the token itself among them.
    dilations: tokens from tap to tap, of each layer.

  Raises (from `check`):
    ValueError: for fewer than two taps, dilations that are no tuple of whole numbers from 1, or dropout,
      as there are no mixing weights to drop.
  """

  taps: int = 3
  dilations: tuple[int, ...] = (1, 2, 4)

  examples = ('convolution', 'convolution(taps=2, dilations=(3,))')
  supported_masks = ('causal',)
  supports_grouped_heads = False

  def check(self):
    if self.taps < 2:
      raise ValueError(f'taps={self.taps} must be at least 2, or no token would hear of another')
    whole = isinstance(self.dilations, tuple) and all(type(d) is int and d >= 1 for d in self.dilations)
    if not whole or not self.dilations:
      raise ValueError(
        f'dilations={self.dilations!r} must be whole numbers from 1, one for each layer; (1, 2, 4) would do'
      )
    if self.dropout > 0:
      raise ValueError(
        f'dropout.attention={self.dropout} drops mixing weights, of which a convolution has '
        'none; 0 would do, or dropout.residual'
      )

  @property
  def reaches(self):
    """How many tokens each layer looks back."""
    return [(self.taps - 1) * d for d in self.dilations]

  @nn.nowrap
  def init_cache(self, batch, length):
    inputs = tuple(
      shard(jnp.zeros((batch, reach, self.width), self.dtype), 'batch', 'length', 'embed')
      for reach in self.reaches
    )
    return Cache(inputs, shard(jnp.zeros((batch, max(self.reaches)), jnp.int32), 'batch', 'length'))

  @nn.compact
  def __call__(self, x, memory, context, cache):
    if memory is not None:
      raise ValueError("mixer='convolution' does not support cross-attention; use 'softmax'")
    before = self.init_cache(len(x), 0) if cache is None else cache
    h, segments = x.astype(self.dtype), context.segments
    # Padding goes to the end, where it separates no token from what the cache remembers, nor from the
    # token before it. Without a cache the layout may promise that there is nothing to move.
    moved = cache is not None or context.layout == 'arbitrary'
    if moved:
      order = jnp.argsort(segments == 0, axis=1, stable=True)
      h, segments = rows(h, order), rows(segments, order)
    row = jnp.concatenate([before.segments, segments], 1)
    inputs = []
    for i, (d, reach) in enumerate(zip(self.dilations, self.reaches)):
      inputs.append(jnp.concatenate([before.inputs[i], h], 1))
      seen = window(inputs[-1], row[:, row.shape[1] - inputs[-1].shape[1] :], self.taps, d)
      gated = self.convolve(f'value_{i}', seen) * nn.sigmoid(self.convolve(f'gate_{i}', seen))
      h = shard(h + gated, 'batch', 'length', 'embed')
    if moved:
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
        tuple(latest(x, count, reach) for x, reach in zip(inputs, self.reaches)),
        latest(row, count, max(self.reaches)),
      )
    return shard(y, 'batch', 'length', 'embed'), cache

  def convolve(self, name, seen):
    y = Linear(
      (self.taps, self.width, self.width),
      ('taps', 'embed', 'mlp'),
      self.initializer,
      contracted=2,
      bias=self.bias,
      dtype=self.dtype,
      name=name,
    )(seen)
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
  """The last `length` of what each row held and of its `count` new tokens: x[b, count[b]:][:length]."""
  return rows(x, count[:, None] + jnp.arange(length)[None])


def rows(x: Array, index: Int[Array, 'B N']) -> Array:
  """x[b, index[b]] of each row b."""
  return jax.vmap(lambda row, at: row.at[at].get(mode='promise_in_bounds', unique_indices=True))(x, index)
