"""Products of projections in small numbers, by qwix; and in those of BitNet."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from tfm.errors import importing_extra, require
from tfm.layers.float32_gradients import reduction_dtype
from tfm.shapes import Array, Float
from tfm.spec import Size


KERNEL_SCALE = 'kernel_scale'  # the parameter beside a kernel that is stored in integers
INPUT_SCALE = 'input_scale'  # that of the scale of its inputs, if it was calibrated
INPUT_SIZES = 'input_sizes'  # the collection of the greatest |x| of each projection, for a calibration
# What the greatest absolute value is divided by, in each type.
GREATEST = {'int8': 127.5, 'float8_e4m3fn': 448.0}


@dataclasses.dataclass(frozen=True)
class Quantization:
  """x · W with W = scale · numbers of few bits, the scales for each output and each group of inputs: the
  greatest |w| of a group / 127.5 of int8, 7.5 of int4, 448 of float8_e4m3fn; numbers beyond the type are cut.

  Attributes:
    weight_type: of the numbers: 'int8', 'int4' or 'float8_e4m3fn'.
    activation_type: that of x, so that the product is one of such numbers; None: x remains as it is.
    group: the number of inputs that share a scale; 0: all.
    stored: whether the parameters are integers; otherwise they are float32 and rounded in each product, and
      gradients pass as if they were not (straight-through, Bengio et al. 2013).
    calibrated: whether all x of a projection have one scale, a parameter, by the greatest |x| of some data;
      otherwise each row has its own.
  """

  weight_type: str
  activation_type: str | None
  group: int
  stored: bool
  calibrated: bool = False

  def scale_shape(self, rows: int, columns: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the scales of a kernel [*rows, *columns] with so many rows in all.

    Raises:
      ValueError: if the group does not divide the rows.
    """
    require(
      not self.group or rows % self.group == 0,
      f'config.model.quantization has group={self.group}, which does not divide the {rows} inputs of a '
      'projection; use a divisor',
    )
    return rows // (self.group or rows), *columns

  def quantize(self, kernel: Float[Array, 'y z']) -> tuple[Array, Float[Array, 'groups z']]:
    """The integers and the scales of a kernel."""
    with importing_extra('quantization'):
      import qwix
    tiles = {0: self.group} if self.group else {}
    array = qwix.quantize(kernel, self.weight_type, channelwise_axes=(1,), tiled_axes=tiles)
    return array.qvalue, array.scale

  def input_scale(self, size: Float[Array, '...']) -> Float[Array, '...']:
    """The scale of inputs x whose greatest |x| is `size`."""
    return jnp.maximum(size, 1e-9) / GREATEST[self.activation_type]

  def multiply(
    self,
    x: Float[Array, '... y'],
    kernel: Array,
    scale: Float[Array, 'groups z'] | None,
    input_scale: Float[Array, ''] | None = None,
  ) -> Float[Array, '... z']:
    """x · W.

    Args:
      kernel: integers with their scales, or float32 without.
      input_scale: of all x; None: each row has its own.
    """
    if scale is None:
      return _multiply_through(self, x, kernel)
    return self._multiply_integers(x, kernel, scale, input_scale)

  def gradient_operands(
    self, x: Float[Array, '... y'], kernel: Float[Array, 'y z']
  ) -> tuple[Float[Array, '... y'], Float[Array, 'y z']]:
    """x and W of the product whose gradients are passed on."""
    return x, kernel

  def _multiply_integers(self, x, integers, scale, input_scale=None):
    with importing_extra('quantization'):
      import qwix
    axes = ((x.ndim - 1,), (0,)), ((), ())
    if input_scale is not None:
      x = qwix.QArray(self._round_inputs(x, input_scale), input_scale.reshape((1,) * x.ndim))
    elif self.activation_type:
      x = qwix.quantize(x, self.activation_type, channelwise_axes=tuple(range(x.ndim - 1)))
    return qwix.dot_general(x, qwix.QArray(integers, scale), axes)

  def _round_inputs(self, x, scale):
    x, dtype = x.astype(jnp.float32) / scale, jnp.dtype(self.activation_type)
    if jnp.issubdtype(dtype, jnp.integer):
      info, x = jnp.iinfo(dtype), jnp.round(x)
    else:
      info = jnp.finfo(dtype)
    return jnp.clip(x, float(info.min), float(info.max)).astype(dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _multiply_through(quantization, x, kernel):
  return quantization._multiply_integers(x, *quantization.quantize(kernel))


def _through_forward(quantization, x, kernel):
  return _multiply_through(quantization, x, kernel), (x, kernel)


def _through_backward(quantization, residuals, dy):
  """The gradients of x · W, of its `gradient_operands`."""
  kernel_dtype = residuals[1].dtype
  x, kernel = quantization.gradient_operands(*residuals)
  dy = dy.astype(x.dtype)
  dx = jnp.einsum('...z,yz->...y', dy, kernel.astype(x.dtype))
  dw = jnp.einsum('...y,...z->yz', x, dy, preferred_element_type=reduction_dtype.value or kernel_dtype)
  return dx, dw.astype(kernel_dtype)


_multiply_through.defvjp(_through_forward, _through_backward)


@dataclasses.dataclass(frozen=True)
class BitNet(Quantization):
  """BitNet b1.58 (Ma et al. 2024, eq. 1 to 3): weights -1, 0 and 1, of one scale for the whole matrix.

    W̃ = γ clip(round(W / γ), -1, 1),  γ = mean |W|;  x̃ = clip(round(x · 127 / β), -128, 127) β / 127,
    β = max |x| of each token

  The product is one of integers. Gradients pass through the rounding alone: they are those of x̃ · W̃, as in
  the authors' training code.
  """

  def quantize(self, kernel):
    scale = jnp.maximum(jnp.abs(kernel).mean(), 1e-5)
    integers = jnp.clip(jnp.round(kernel / scale), -1, 1).astype(jnp.int8)
    return integers, jnp.full((1, kernel.shape[1]), scale)

  def gradient_operands(self, x, kernel):
    integers, scale = self.quantize(kernel)
    rounded, step = self._round_tokens(x)
    return (rounded * step).astype(x.dtype), integers * scale

  def _multiply_integers(self, x, integers, scale, input_scale=None):
    rounded, step = self._round_tokens(x)
    numbers = ((x.ndim - 1,), (0,)), ((), ())
    product = jax.lax.dot_general(
      rounded.astype(jnp.int8), integers, numbers, preferred_element_type=jnp.int32
    )
    return (product * step * scale.reshape(*[1] * (x.ndim - 1), -1)).astype(x.dtype)

  def _round_tokens(self, x):
    """(Whole numbers in float32, the value of 1) of each token."""
    x = x.astype(jnp.float32)
    step = jnp.maximum(jnp.abs(x).max(-1, keepdims=True), 1e-5) / 127
    return jnp.clip(jnp.round(x / step), -128, 127), step


def int8(weights_only: bool = False, calibrated: bool = False, stored: bool = False) -> Quantization:
  require(
    not (weights_only and calibrated),
    'weights_only=True leaves the inputs as they are, and calibrated=True gives them a scale; leave one out',
  )
  return Quantization('int8', None if weights_only else 'int8', 0, stored, calibrated)


def fp8(calibrated: bool = False, stored: bool = False) -> Quantization:
  return Quantization('float8_e4m3fn', 'float8_e4m3fn', 0, stored, calibrated)


def int4(group: Size = 64, stored: bool = False) -> Quantization:
  return Quantization('int4', None, group, stored)


def bitnet(stored: bool = False) -> Quantization:
  return BitNet('int8', 'int8', 0, stored)


QUANTIZATIONS = {'none': lambda: None, 'int8': int8, 'int4': int4, 'fp8': fp8, 'bitnet': bitnet}
# A context around the layers of a model: the `Quantization` of their projections, or None.
active_quantization = jax.make_user_context()
