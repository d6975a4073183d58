"""The rates that a device reaches in matrix products and in copies."""

import jax
import jax.numpy as jnp

from tfm.benchmark.timing import seconds_per_call


def matmul(m: int, k: int, n: int) -> dict[str, float]:
  """TFLOP/s of an m × k by k × n product in bfloat16: 2 m k n operations."""
  x, w = (
    jax.random.normal(jax.random.key(i), shape, jnp.bfloat16) for i, shape in enumerate(((m, k), (k, n)))
  )
  product = jax.jit(lambda x, w: x @ w)
  seconds = seconds_per_call(lambda: product(x, w), jax.block_until_ready)
  return dict(tflops=2 * m * k * n / seconds / 1e12, ms=1000 * seconds)


def copy(mib: int) -> dict[str, float]:
  """GB/s of reading and writing so many MiB of float32."""
  x = jnp.zeros(mib * 2**18, jnp.float32)
  add = jax.jit(lambda x: x + 1)
  seconds = seconds_per_call(lambda: add(x), jax.block_until_ready)
  return dict(gbps=2 * mib * 2**20 / seconds / 1e9, ms=1000 * seconds)
