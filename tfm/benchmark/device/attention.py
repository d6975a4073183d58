"""Attention alone, and other mixers, in bfloat16: forward, and forward with backward."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from tfm.benchmark.attention import Shape, make_kernel, make_mixer
from tfm.benchmark.timing import seconds_per_call
from tfm.models import memory


def kernel(kernel: str, variant: str, length: int, **shape: int) -> dict[str, float]:
  """Milliseconds of a kernel."""
  return time_passes(*make_kernel(kernel, variant, length, Shape(dtype='bfloat16', **shape)))


def mixer(fields: Mapping[str, str], length: int, **shape: int) -> dict[str, float]:
  """Milliseconds of a mixer, its projections included."""
  return time_passes(*make_mixer(fields, length, Shape(dtype='bfloat16', **shape)))


def time_passes(run: Callable, arguments: tuple) -> dict[str, float]:
  """Milliseconds of both passes, and the most memory of a device until then."""

  def loss(*arguments):
    return jnp.square(run(*arguments).astype(jnp.float32)).sum()

  found = {}
  for name, f in (('forward', run), ('both', jax.grad(loss, tuple(range(len(arguments)))))):
    compiled = jax.jit(f).lower(*arguments).compile()
    seconds = seconds_per_call(lambda: compiled(*arguments), jax.block_until_ready)
    found |= {f'{name}_ms': 1000 * seconds, f'{name}_gib': memory.peak_usage() / 2**30}
  return found
