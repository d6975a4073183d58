"""The rates that a device reaches in matrix products and in copies.

The work is repeated within one program: a product of few rows is over before the next could be dispatched.
"""

import jax
import jax.numpy as jnp

from tfm.benchmark.timing import seconds_per_call


def matmul(m: int, k: int, n: int, repeats: int = 20) -> dict[str, float]:
  """TFLOP/s in bfloat16 of m × k by k × n products and m × n by n × k ones in turn: 2 m k n operations each.

  Each takes the result of the one before, so that none is left out or runs beside another.
  """

  def draw(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)

  x, w, back = draw(0, m, k), draw(1, k, n) * k**-0.5, draw(2, n, k) * n**-0.5  # of which x keeps its size
  run = jax.jit(lambda x, w, back: jax.lax.fori_loop(0, repeats, lambda _, x: (x @ w) @ back, x))
  seconds = seconds_per_call(lambda: run(x, w, back), jax.block_until_ready) / (2 * repeats)
  return dict(tflops=2 * m * k * n / seconds / 1e12, ms=1000 * seconds)


def copy(mib: int, repeats: int = 20) -> dict[str, float]:
  """GB/s of reading and writing so many MiB of float32."""
  x = jnp.zeros(mib * 2**18, jnp.float32)
  run = jax.jit(lambda x: jax.lax.fori_loop(0, repeats, lambda _, x: x + 1, x))
  seconds = seconds_per_call(lambda: run(x), jax.block_until_ready) / repeats
  return dict(gbps=2 * mib * 2**20 / seconds / 1e9, ms=1000 * seconds)
