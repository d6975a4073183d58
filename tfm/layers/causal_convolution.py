"""The depthwise causal convolution: each channel looks back on itself, within its document."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from tfm.layers.initializer import uniform
from tfm.parallel.sharding import shard, with_logical_axes
from tfm.shapes import Array, Float, Int


@struct.dataclass
class Window:
  """The last tokens of every row that are no padding, as many as the taps reach back; segment 0: none yet."""

  x: Float[Array, 'B S ...']
  segments: Int[Array, 'B S']

  @classmethod
  def empty(cls, shape: tuple[int, ...], axes: tuple[str, ...], dtype: jnp.dtype) -> 'Window':
    """Nothing seen yet, with room for `shape` = (B, S, *channels); `axes` are those of the channels."""
    return cls(
      shard(jnp.zeros(shape, dtype), 'batch', 'length', *axes),
      shard(jnp.zeros(shape[:2], jnp.int32), 'batch', 'length'),
    )


class CausalConvolution(nn.Module):
  """y_t = Σ_k w_k ⊙ x_{t - (taps - 1 - k) · dilation} + b, over the tokens of one document.

  Taps count tokens of the document: padding is passed over, and before its first token a document
  reads zeros. Depthwise (Chollet 2017, §2), dilated (van den Oord et al. 2016, WaveNet, §2.1);
  weights and biases start from U(±1/√taps).

  Attributes:
    channels: the shape of one token; axes: the logical axes of that shape.
    taps: how many tokens are weighed, the last one the token itself; dilation: tokens from tap to tap.
    bias: whether to add b.
    dtype: compute type; sums and parameters are in float32.

  A window on it has room for (taps - 1) · dilation tokens.
  """

  channels: tuple[int, ...]
  axes: tuple[str, ...]
  taps: int
  dilation: int = 1
  bias: bool = True
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B T ...'],
    segments: Int[Array, 'B T'],
    window: Window | None = None,
    unbroken: bool = False,
  ) -> tuple[Float[Array, 'B T ...'], Window | None]:
    """The convolution, and with a `window` on what came before, the window on what comes after.

    `unbroken` promises that no padding stands between two tokens of a document, here or in the
    window: then nothing has to be moved.
    """
    T, x, after = x.shape[1], x.astype(self.dtype), None
    reach = (self.taps - 1) * self.dilation
    if window is not None:
      x, segments = jnp.concatenate([window.x, x], 1), jnp.concatenate([window.segments, segments], 1)
    if not unbroken:
      # Padding goes to the front, where it separates nothing.
      order = jnp.argsort(segments > 0, axis=1, stable=True)
      x, segments = _rows(x, order), _rows(segments, order)
    if window is not None:
      after = jax.tree.map(lambda y: y[:, y.shape[1] - reach :], Window(x, segments))
    y = self.weigh(x, segments)
    if not unbroken:
      y = _rows(y, jnp.argsort(order, axis=1))
    return shard(y[:, y.shape[1] - T :], 'batch', 'length', *self.axes), after

  def weigh(self, x, segments):
    """The sum over the taps, of tokens that stand side by side."""
    S, ones = x.shape[1], (1,) * len(self.channels)
    initializer = uniform(-(self.taps**-0.5), self.taps**-0.5)
    weight = self.param(
      'weight', with_logical_axes(initializer, ('taps', *self.axes)), (self.taps, *self.channels), jnp.float32
    )
    y = 0.0
    for tap in range(self.taps):
      back = min((self.taps - 1 - tap) * self.dilation, S)
      same = segments == _delayed(segments, back)
      seen = jnp.where(same.reshape(*same.shape, *ones), _delayed(x, back), 0)
      y = y + seen.astype(jnp.float32) * weight[tap][None, None]
    if self.bias:
      y = (
        y
        + self.param('bias', with_logical_axes(initializer, self.axes), self.channels, jnp.float32)[
          None, None
        ]
      )
    return y.astype(self.dtype)


def _rows(x, index):
  """Row b of the result holds x[b, index[b]]."""
  return jax.vmap(lambda row, at: row.at[at].get(unique_indices=True, mode='promise_in_bounds'))(x, index)


def _delayed(x, by):
  """x moved along the length, zeros first."""
  return jnp.pad(x, ((0, 0), (by, 0), *((0, 0),) * (x.ndim - 2)))[:, : x.shape[1]]
