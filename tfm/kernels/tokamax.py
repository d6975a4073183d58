"""Fused attention for GPUs from the package tokamax, written in Pallas."""

import dataclasses
import functools
import importlib
from collections.abc import Callable
from types import ModuleType

import jax
import jax.numpy as jnp
from absl import flags

from tfm.kernels.protocol import NO_GPU_ATTACHED, Kernel, mask_band, unsupported_mask_reason
from tfm.parallel import mesh
from tfm.parallel.sharded_attention import attend_per_device, uneven_heads_reason
from tfm.parallel.sharding import shard


# Implementation → (first compute capability it supports, first it does not); () runs on any platform.
IMPLEMENTATIONS = {'mosaic': (9, 11), 'triton': (8, 100), 'xla_chunked': ()}
# Block size of the backward pass on Blackwell.
BLOCK = 128


@dataclasses.dataclass(frozen=True)
class Tokamax(Kernel):
  """`tokamax.dot_product_attention`, FlashAttention (Dao 2023; Shah et al. 2024) written in Pallas.

  Supports what `cudnn` supports, and soft caps, wider heads, and values of another width than the keys:
  self-attention over rows of one document each (layout 'contiguous') under a causal mask, a causal mask with
  a window to the left, or the full mask. Under the full mask the keys of the padding are masked explicitly,
  because the library's gradients are wrong with its own sequence lengths. It returns no log-sum-exp.

  The package is optional: the extra `[tokamax]`, which requires jax below 0.11.

  Attributes:
    implementation: 'mosaic' (Hopper, Blackwell), 'triton' (Ampere and later), or 'xla_chunked' (any
      platform).

  Raises:
    ValueError: for another implementation.
  """

  platforms = ('gpu',)

  implementation: str = 'mosaic'

  def __post_init__(self):
    if self.implementation not in IMPLEMENTATIONS:
      names = ', '.join(map(repr, IMPLEMENTATIONS))
      raise ValueError(f'implementation={self.implementation!r} is unknown; use one of {names}')

  def unavailable_reason(self, platform):
    if not IMPLEMENTATIONS[self.implementation]:
      return import_error()
    return (
      super().unavailable_reason(platform)
      or import_error()
      or unsupported_gpu_reason(
        self.implementation, (device := mesh.attached_device(platform)) and device.compute_capability
      )
    )

  def unsupported_reason(self, q, k, v, inputs):
    T, S = q.shape[1], k.shape[1]
    # The backward pass of 'triton' supports no soft cap.
    supported = () if self.implementation == 'triton' else ('soft_cap',)
    if reason := inputs.unsupported_feature_reason(*supported) or unsupported_mask_reason(inputs, T, S):
      return reason
    if IMPLEMENTATIONS[self.implementation]:
      if q.dtype not in (jnp.float16, jnp.bfloat16) or not q.dtype == k.dtype == v.dtype:
        return f'it computes in float16 or bfloat16, not {q.dtype}'
      if T % BLOCK or S % BLOCK:
        return f'its lengths must be multiples of {BLOCK}, not {T} queries and {S} keys'
    return uneven_heads_reason(q.shape[2], k.shape[2])

  def attend(self, q, k, v, inputs):
    left, right = mask_band(inputs.mask, q.shape[1], k.shape[1])
    options = dict(
      scale=inputs.scale,
      logits_soft_cap=inputs.soft_cap or None,
      is_causal=right == 0 and left is None,
      local_window_size=None if left is None else (left, 0),
    )
    attention = functools.partial(self.attend_local, options)
    out = attend_per_device(attention, q, k, v, (inputs.q_segments, inputs.k_segments))
    return shard(out, 'batch', 'length', 'heads', 'kv'), None

  def attend_local(self, options, q, k, v, segments, sinks):
    """Attention over one device's rows and heads; `options` are those of the library."""
    q_segments, k_segments = segments
    causal = options['is_causal'] or options['local_window_size'] is not None
    visible, valid = None, q_segments != 0
    if not causal:
      keys = k_segments != 0
      valid &= keys.any(1, keepdims=True)
      # A row without keys, whose output is discarded, sees all of them: softmax needs at least one.
      visible = (keys | ~keys.any(1, keepdims=True))[:, None, None, :]
    attention = functools.partial(
      package().dot_product_attention, implementation=self.implementation, **options
    )
    out = with_rank_promotion(lambda q, k, v, visible: attention(q, k, v, mask=visible))(q, k, v, visible)
    return jnp.where(valid[:, :, None, None], out, 0).astype(v.dtype)


def with_rank_promotion(function: Callable) -> Callable:
  """The function with rank promotion allowed in its forward and backward pass; elsewhere tfm forbids it."""
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
    ImportError or AttributeError: if it is not installed, or does not support this version of JAX.
  """
  # tokamax parses the command line unless absl's flags count as parsed.
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()
  return importlib.import_module('tokamax')


@functools.cache
def import_error() -> str | None:
  """Why the package cannot be imported; None if it can."""
  try:
    package()
  except (ImportError, AttributeError) as error:
    return f'the package tokamax cannot be imported with jax {jax.__version__} ({error})'
  return None


def unsupported_gpu_reason(implementation: str, capability: str | None) -> str | None:
  """Why an implementation does not run on a GPU; None if it does.

  Args:
    capability: the compute capability; not a number for another vendor's GPU, None if no GPU is attached.
  """
  if capability is None:
    return NO_GPU_ATTACHED
  first, end = IMPLEMENTATIONS[implementation]
  major = capability.partition('.')[0]
  if major.isdigit() and first <= int(major) < end:
    return None
  return (
    f'its implementation={implementation!r} needs an NVIDIA GPU of compute capability {first} or later'
    f'{f", below {end}" if end < 100 else ""}, not {capability!r}'
  )
