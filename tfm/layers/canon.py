"""Canon layers: each token adds a weighted sum of itself and the three before it."""

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.causal_convolution import CausalConvolution, Window
from tfm.shapes import Array, Float, Int


TAPS = 4


class Canon(nn.Module):
  """y_t = x_t + w_0 ⊙ x_t + w_1 ⊙ x_{t-1} + w_2 ⊙ x_{t-2} + w_3 ⊙ x_{t-3}, within a document.

  Allen-Zhu 2025, Physics of Language Models, part 4.1; without bias and activation, as in the released code.

  Attributes:
    channels: the shape of one token; axes: the logical axes of that shape.
    dtype: compute type.
  """

  channels: tuple[int, ...]
  axes: tuple[str, ...]
  dtype: jnp.dtype

  @nn.nowrap
  def init_window(self, batch: int) -> Window:
    """What it sees before the first token."""
    return Window.empty((batch, TAPS - 1, *self.channels), self.axes, self.dtype)

  @nn.compact
  def __call__(
    self, x: Float[Array, 'B T ...'], segments: Int[Array, 'B T'], window: Window | None, unbroken: bool
  ) -> tuple[Float[Array, 'B T ...'], Window | None]:
    """y, and the window on what comes after; `unbroken` as in `CausalConvolution`."""
    convolution = CausalConvolution(
      self.channels, self.axes, TAPS, bias=False, dtype=self.dtype, name='convolution'
    )
    y, window = convolution(x, segments, window, unbroken)
    return x + y, window


def pass_through(name: str, y: Array) -> Array:
  """y: no Canon layer on the projection of that name."""
  return y
