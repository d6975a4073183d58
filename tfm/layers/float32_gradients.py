"""Products and rows of float32 parameters in a smaller compute type, whose gradients are summed in float32.

Differentiating `x @ w.astype(bfloat16)` rounds the gradient of w to bfloat16, and devices add up what is
rounded: what is small beside the sum is lost. Here it leaves the product, which accumulates in float32,
unrounded; or rounded after all, under `reduction_dtype`, so that devices send half as much.
"""

import string

import jax
import jax.numpy as jnp

from tfm.parallel.sharding import shard
from tfm.shapes import Array, Float, Int, PyTree


# A context around differentiation, such as `reduction_dtype(jnp.bfloat16)`: the type in which devices add up
# gradients of parameters; None: that of the parameters. JAX retraces jitted functions under another value.
reduction_dtype = jax.make_user_context()
# The same; True: the operands of a parameter's gradient are in memory before their product, if the compiler
# has the preset `barriers`. XLA's for CPUs otherwise computes an operand, such as the gradient of a GELU, a
# second time for the product, in transposed order. In forward mode there is no derivative then, as with a
# smaller compute type.
operands_in_memory = jax.make_user_context(False)


def in_memory(x: PyTree) -> PyTree:
  """x; under `operands_in_memory` computed on its own, and not again by what reads it."""
  return jax.lax.optimization_barrier(x) if operands_in_memory.value else x


def einsum(equation: str, x: Array, w: Array, dtype: jnp.dtype | None = None) -> Array:
  """The product of x and a parameter w, in the type of x; the result in `dtype`, by default that of x.

  Gradients are products in the type of x too; that of w is accumulated and returned in the type of w, and
  devices add it up in `reduction_dtype`. Every letter of the equation occurs in two of its three places;
  leading axes of x and the result may be '...'.
  """
  rows = string.ascii_lowercase[: x.ndim - len(equation.partition(',')[0].removeprefix('...'))]
  equation = equation.replace('...', rows)
  if x.dtype == w.dtype and not operands_in_memory.value:
    return jnp.einsum(equation, x, w, preferred_element_type=dtype)
  return _einsum(equation, dtype or x.dtype, operands_in_memory.value, x, w)


def _multiply(equation, dtype, stored, x, w):
  return jnp.einsum(equation, x, w.astype(x.dtype), preferred_element_type=dtype)


_einsum = jax.custom_vjp(_multiply, nondiff_argnums=(0, 1, 2))


def _einsum_forward(equation, dtype, stored, x, w):
  # Not `_einsum`: policies of rematerialization do not look into a call with its own derivative.
  return _multiply(equation, dtype, stored, x, w), (x, w)


def _einsum_backward(equation, dtype, stored, residuals, dy):
  x, w = residuals
  (of_x, of_w), of_y = equation.split('->')[0].split(','), equation.split('->')[1]
  dy = dy.astype(x.dtype)
  if stored:
    x, dy = jax.lax.optimization_barrier((x, dy))
  dx = jnp.einsum(f'{of_y},{of_w}->{of_x}', dy, w.astype(x.dtype))
  # Devices add up what leaves the product, before it is cast.
  order = _cheaper_order(of_w, w.size, {of_x: x.size, of_y: dy.size}) if stored else of_w
  dw = jnp.einsum(f'{of_x},{of_y}->{order}', x, dy, preferred_element_type=reduction_dtype.value or w.dtype)
  if order != of_w:
    dw = jnp.einsum(f'{order}->{of_w}', jax.lax.optimization_barrier(dw))
  return dx, dw.astype(w.dtype)


_einsum.defvjp(_einsum_forward, _einsum_backward)


def _cheaper_order(of_w: str, size: int, operands: dict[str, int]) -> str:
  """The letters of a parameter's gradient as the product should have them. To transpose it, XLA's for CPUs
  copies the operand that has its first letter: a smaller operand and the gradient may be less to copy.
  """
  batch = set.intersection(*map(set, operands))
  lead = next(letter for letter in of_w if letter not in batch)
  first, second = sorted(operands, key=lambda letters: lead not in letters)
  if operands[first] <= operands[second] + size:
    return of_w
  return ''.join(sorted(of_w, key=lambda letter: (letter not in batch, letter in first)))


def take_rows(
  table: Float[Array, 'V D'], indices: Int[Array, 'B T'], dtype: jnp.dtype, axis: str
) -> Float[Array, 'B T D']:
  """The rows of a table in `dtype`; the gradients of equal rows are added up in the type of the table, on and
  between devices, whatever `reduction_dtype` is: of a frequent row there are thousands.

  Args:
    axis: the logical axis of the rows. Columns are gathered: XLA copies everything to index a table that is
      sharded along both axes.
  """
  return (_take if table.dtype == dtype else _take_narrow)(table, indices, dtype, axis)


def _take(table, indices, dtype, axis):
  return shard(table.astype(dtype), axis, None)[indices]


_take_narrow = jax.custom_vjp(_take, nondiff_argnums=(2, 3))


def _take_forward(table, indices, dtype, axis):
  return _take(table, indices, dtype, axis), (table, indices)


def _take_backward(dtype, axis, residuals, dy):
  table, indices = residuals
  zeros = shard(jnp.zeros_like(table), axis, None)
  return zeros.at[indices].add(dy.astype(table.dtype)), None


_take_narrow.defvjp(_take_forward, _take_backward)
