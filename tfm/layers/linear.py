"""The one linear layer."""

import math

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.checkpoint_names import name_output
from tfm.layers.float32_gradients import einsum
from tfm.layers.initializer import Factory, zeros
from tfm.layers.lora import UNSUPPORTED_AXES, compute_update
from tfm.layers.quantization import INPUT_SCALE, INPUT_SIZES, KERNEL_SCALE, active_quantization
from tfm.parallel.sharding import with_logical_axes
from tfm.shapes import Array, Float


class Linear(nn.Module):
  """y = x · W + b, contracting the last axes of x with the first of W.

  The kernel has its final rank, so a projection to heads is one array [D, H, C] whose axes are named and
  sharded separately.

  Attributes:
    shape: the kernel's shape, contracted axes first.
    axes: the kernel's logical axes, one for each.
    initializer: the kernel's.
    contracted_axes: how many axes of the kernel are contracted, from the first on.
    bias: whether to add b, of the shape of the output axes, initialized to zeros.
    dtype: compute type; parameters and their gradients are in float32.
    output_dtype: of the result, which is accumulated in float32 anyway; None: `dtype`.
  """

  shape: tuple[int, ...]
  axes: tuple[str, ...]
  initializer: Factory
  contracted_axes: int = 1
  bias: bool = True
  dtype: jnp.dtype = jnp.float32
  output_dtype: jnp.dtype | None = None

  @nn.compact
  def __call__(self, x: Float[Array, '...']) -> Float[Array, '...']:
    n, rank = self.contracted_axes, len(self.shape)
    initializer = self.initializer(tuple(range(n)), tuple(range(n, rank)))
    quantization, scale, input_scale = active_quantization.value, None, None
    is_plain = not UNSUPPORTED_AXES & set(self.axes)
    if not is_plain:
      quantization = None
    # One matrix product whatever the rank: XLA's CPU backend is much faster on it.
    rows, columns = math.prod(self.shape[:n]), self.shape[n:]
    if quantization and quantization.stored:
      integers = with_logical_axes(zeros, self.axes)
      kernel = self.param('kernel', integers, self.shape, jnp.dtype(quantization.weight_type))
      scales = with_logical_axes(zeros, ('rank', *self.axes[n:]))  # no mesh shards groups of inputs
      scale = self.param(KERNEL_SCALE, scales, quantization.scale_shape(rows, columns), jnp.float32)
      scale = scale.reshape(len(scale), -1)
      if quantization.calibrated:
        input_scale = self.param(INPUT_SCALE, with_logical_axes(zeros, ()), (), jnp.float32)
    else:
      kernel = self.param('kernel', with_logical_axes(initializer, self.axes), self.shape, jnp.float32)
    if x.shape[-n:] != self.shape[:n]:
      raise ValueError(f'Linear contracts {self.shape[:n]} and the input ends in {x.shape[-n:]}')
    x2, kernel = x.astype(self.dtype).reshape(*x.shape[:-n], rows), kernel.reshape(rows, math.prod(columns))
    if is_plain and self.is_mutable_collection(INPUT_SIZES) and not self.is_initializing():
      before = self.get_variable(INPUT_SIZES, 'size', 0.0)
      self.put_variable(INPUT_SIZES, 'size', jnp.maximum(before, jnp.abs(x2).max().astype(jnp.float32)))
    dtype = self.output_dtype or self.dtype
    if quantization:
      y = quantization.multiply(x2, kernel, scale, input_scale).astype(dtype)
    else:
      y = einsum('...y,yz->...z', x2, kernel, dtype)
    y = y.reshape(*x.shape[:-n], *columns)
    if (update := compute_update(self, x.astype(self.dtype), n)) is not None:
      y = y + update.astype(y.dtype)
    if self.bias:
      b = self.param('bias', with_logical_axes(zeros, self.axes[n:]), columns, jnp.float32)
      # Added in float32, so that its gradient is summed in float32.
      y = (y + b.reshape((1,) * (x.ndim - n) + columns)).astype(y.dtype)
    return name_output(y, self)
