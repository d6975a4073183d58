"""Attention alone, and other mixers, in bfloat16: forward, and forward with backward."""

from collections.abc import Callable, Mapping

import jax

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
  """Milliseconds of the forward pass, and of both, from a gradient of the output that is given; and the most
  memory of a device until then.
  """
  shape = jax.eval_shape(run, *arguments)
  gradient = jax.random.normal(jax.random.key(4), shape.shape, shape.dtype)

  def both(gradient, *arguments):
    return jax.vjp(run, *arguments)[1](gradient)

  found = {}
  for name, f, inputs in (('forward', run, arguments), ('both', both, (gradient, *arguments))):
    compiled = jax.jit(f).lower(*inputs).compile()
    seconds = seconds_per_call(lambda: compiled(*inputs), jax.block_until_ready)
    found |= {f'{name}_ms': 1000 * seconds, f'{name}_gib': memory.peak_usage() / 2**30}
  return found
