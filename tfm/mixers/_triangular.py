"""Unit triangular systems by matrix products alone."""

import functools

import jax
import jax.numpy as jnp

from tfm.shapes import Array, Float


# Errors multiply from row to row, so no product may be rounded to bfloat16 on the way.
product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


@jax.custom_vjp
def solve(system: Float[Array, '... I I'], right: Float[Array, '... I C']) -> Float[Array, '... I C']:
  """X with (1 + L) X = right, L being the part of `system` below the diagonal.

  XLA's triangular solve proceeds row by row on an accelerator, and in jaxlib 0.10 many small systems at
  once can hang on a CPU.
  """
  return product(inverse(system), right)


def inverse(system: Float[Array, '... I I']) -> Float[Array, '... I I']:
  """(1 + L)⁻¹ recursively: [[A, 0], [B, C]]⁻¹ = [[A⁻¹, 0], [-C⁻¹ B A⁻¹, C⁻¹]].

  Both halves of all levels are computed together, in 2⌈log₂ I⌉ products, without powers of L, whose entries
  may be much larger than those of the inverse.
  """
  I = system.shape[-1]
  size = 1 << (I - 1).bit_length()
  pad = ((0, 0),) * (system.ndim - 2) + ((0, size - I),) * 2
  return _inverse(jnp.pad(system, pad))[..., :I, :I]


def _inverse(system):
  size = system.shape[-1]
  if size == 1:
    return jnp.ones_like(system)
  s = size // 2
  first, last = _inverse(jnp.stack([system[..., :s, :s], system[..., s:, s:]]))
  corner = -product(last, product(system[..., s:, :s], first))
  return jnp.block([[first, jnp.zeros_like(first)], [corner, last]])


def _forward(system, right):
  inverse_matrix = inverse(system)
  solution = product(inverse_matrix, right)
  return solution, (inverse_matrix, solution)


def _backward(residuals, d):
  inverse_matrix, solution = residuals
  to_right = product(inverse_matrix.swapaxes(-1, -2), d)
  return jnp.tril(-product(to_right, solution.swapaxes(-1, -2)), -1), to_right


solve.defvjp(_forward, _backward)
