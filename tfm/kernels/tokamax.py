"""Fused attention for GPUs from tokamax, by way of Pallas."""

import dataclasses
import functools
import importlib
from collections.abc import Callable
from types import ModuleType

import jax
import jax.numpy as jnp
from absl import flags

from tfm.kernels.protocol import UNKNOWN, Kernel, band, fancy
from tfm.parallel import mesh
from tfm.parallel.per_device import per_device, uneven
from tfm.parallel.sharding import shard


# The compute capabilities from which, and up to which, an implementation runs; () runs anywhere.
IMPLEMENTATIONS = {'mosaic': (9, 11), 'triton': (8, 100), 'xla_chunked': ()}
# What the backward pass on Blackwell takes as blocks.
BLOCK = 128


@dataclasses.dataclass(frozen=True)
class Tokamax(Kernel):
  """`tokamax.dot_product_attention`, FlashAttention (Dao 2023; Shah et al. 2024) written in Pallas.

  It serves what `cudnn` does, and soft caps, wider heads, and values of another width: rows of one
  document each (layout 'whole') whose queries are the keys' own tokens, under a mask that is causal, causal
  with a window to the left, or full. The library's own sequence lengths are not used, for its gradients
  are wrong with them: under the full mask the keys of the padding are masked. There is no log-sum-exp.

  The package is optional: `pip install tokamax`, which wants jax below 0.11.

  Attributes:
    implementation: 'mosaic' (Hopper, Blackwell), 'triton' (Ampere and later), or 'xla_chunked' (anywhere).

  Raises:
    ValueError: for another implementation.
  """

  platforms = ('gpu',)

  implementation: str = 'mosaic'

  def __post_init__(self):
    if self.implementation not in IMPLEMENTATIONS:
      known = ', '.join(map(repr, IMPLEMENTATIONS))
      raise ValueError(f'implementation={self.implementation!r} is not there; known: {known}')

  def absence(self, platform):
    if not IMPLEMENTATIONS[self.implementation]:
      return missing()
    return (
      super().absence(platform)
      or missing()
      or unfit(self.implementation, (device := mesh.attached(platform)) and device.compute_capability)
    )

  def refusal(self, q, k, v, asked):
    T, S = q.shape[1], k.shape[1]
    # The backward pass of 'triton' has no caps.
    able = () if self.implementation == 'triton' else ('soft_cap',)
    if reason := asked.beyond(*able) or fancy(asked, T, S):
      return reason
    if IMPLEMENTATIONS[self.implementation]:
      if q.dtype not in (jnp.float16, jnp.bfloat16) or not q.dtype == k.dtype == v.dtype:
        return f'it computes in float16 or bfloat16, and this is {q.dtype}'
      if T % BLOCK or S % BLOCK:
        return f'its lengths are multiples of {BLOCK}, not {T} queries and {S} keys'
    return uneven(q.shape[2], k.shape[2])

  def attend(self, q, k, v, asked):
    left, right = band(asked.mask, q.shape[1], k.shape[1])
    attention = functools.partial(self.local, asked.scale, asked.soft_cap or None, left, right)
    out = per_device(attention, q, k, v, asked.q_segments, asked.k_segments)
    return shard(out, 'batch', 'length', 'heads', 'kv'), None

  def local(self, scale, soft_cap, left, right, q, k, v, q_segments, k_segments, sinks):
    """Attention over what one device has of rows and heads."""
    causal, seen, there = right == 0, None, q_segments != 0
    if not causal:
      keys = k_segments != 0
      there &= keys.any(1, keepdims=True)
      # A row that is thrown away sees all its keys: no weights can be made of none.
      seen = (keys | ~keys.any(1, keepdims=True))[:, None, None, :]
    attention = functools.partial(
      package().dot_product_attention,
      scale=scale,
      logits_soft_cap=soft_cap,
      is_causal=causal and left is None,
      local_window_size=None if left is None else (left, 0),
      implementation=self.implementation,
    )
    out = promoting(lambda q, k, v, seen: attention(q, k, v, mask=seen))(q, k, v, seen)
    return jnp.where(there[:, :, None, None], out, 0).astype(v.dtype)


def promoting(function: Callable) -> Callable:
  """The function, traced with ranks promoted both forward and backward, which is forbidden elsewhere."""
  allowed = functools.partial(jax.numpy_rank_promotion, 'allow')

  def forward(*args):
    with allowed():
      return jax.vjp(function, *args)

  def backward(back, cotangent):
    with allowed():
      return back(cotangent)

  run = jax.custom_vjp(lambda *args: forward(*args)[0])
  run.defvjp(forward, backward)
  return run


@functools.cache
def package() -> ModuleType:
  """The package tokamax.

  Raises:
    ImportError or AttributeError: where it is not there, or does not go with this JAX.
  """
  # It parses the command line by itself if nobody has.
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()
  return importlib.import_module('tokamax')


@functools.cache
def missing() -> str | None:
  """Why the package cannot be imported; None if it can."""
  try:
    package()
  except (ImportError, AttributeError) as error:
    return f'the package tokamax cannot be imported with jax {jax.__version__} ({error})'
  return None


def unfit(implementation: str, capability: str | None) -> str | None:
  """Why an implementation does not run on a GPU; a capability that is no number is another maker's, and None is of one that is
  not here."""
  if capability is None:
    return UNKNOWN
  first, end = IMPLEMENTATIONS[implementation]
  major = capability.partition('.')[0]
  if major.isdigit() and first <= int(major) < end:
    return None
  return (
    f'its implementation={implementation!r} wants an NVIDIA GPU of compute capability {first} or later'
    f'{f", below {end}" if end < 100 else ""}, and this one says {capability!r}'
  )
