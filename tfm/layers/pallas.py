"""Shared by kernels in Pallas, which are lowered to Mosaic for TPUs and to Triton for GPUs."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton

from tfm.parallel import mesh
from tfm.shapes import Array, Float


# Of a TPU's memory for vectors, what a kernel may take; the compiler's own limit is 16 MiB of 64 to 128.
VMEM = 48 * 2**20
# The smallest side of a matrix that Triton multiplies.
LEAST = 16
LANES = 128  # of a TPU's vector registers


def target_platform(interpret: bool) -> str:
  """The platform that kernels are compiled for; 'cpu' where they are interpreted."""
  return 'cpu' if interpret else mesh.current_platform()


def compiler_params(interpret: bool, warps: int = 8, stages: int = 2) -> Any:
  """The options of the platform's compiler.

  Args:
    warps: of threads that compute a block on a GPU; stages: of a loop that run at once there.
  """
  platform = target_platform(interpret)
  if platform == 'tpu':
    return pltpu.CompilerParams(vmem_limit_bytes=VMEM)
  return triton.CompilerParams(num_warps=warps, num_stages=stages) if platform == 'gpu' else None


def matmul(
  a: Array, b: Array, contract: tuple[int, int] = (1, 0), precision: jax.lax.Precision | None = None
) -> Float[Array, '_ _']:
  """The product of two matrices over an axis of each, in float32."""
  dimensions = ((contract[:1], contract[1:]), ((), ()))
  return jax.lax.dot_general(a, b, dimensions, precision=precision, preferred_element_type=jnp.float32)


def pad_channels(x: Float[Array, '*B C']) -> Float[Array, '*B C2']:
  """Channels padded with zeros to a power of two, which Triton's blocks need."""
  more = padded_width(x.shape[-1]) - x.shape[-1]
  return jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, more),))


def padded_width(channels: int) -> int:
  """The channels of what `pad_channels` returns."""
  return max(LEAST, 1 << (channels - 1).bit_length())


def is_block_size(size: int) -> bool:
  """Whether a block of so many tokens can be lowered: a power of two that Triton multiplies."""
  return size >= LEAST and not size & (size - 1)
