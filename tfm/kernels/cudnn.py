"""cuDNN's fused attention, through JAX."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from tfm.kernels.protocol import NO_GPU_ATTACHED, Kernel, mask_band, unsupported_mask_reason
from tfm.parallel import mesh
from tfm.parallel.sharded_attention import attend_per_device, uneven_heads_reason
from tfm.parallel.sharding import shard


IMPLEMENTATIONS = ('cudnn', 'xla')


@dataclasses.dataclass(frozen=True)
class Cudnn(Kernel):
  """`jax.nn.dot_product_attention` with its fused implementation (FlashAttention: Dao et al. 2022; Dao 2023).

  Supports self-attention over rows of one document each (layout 'contiguous') under a causal mask, a causal
  mask with a window to the left, or the full mask. The mask is recognized by the pairs it shows, not by its
  name. Under a causal mask padding follows all visible tokens and needs no masking; under the full mask cuDNN
  gets the number of keys. The outputs of queries in the padding are set to zero.

  It returns no log-sum-exp: JAX returns it in the dtype of q and without a gradient. It supports no bias:
  cuDNN's gradient of a bias is correct for a single row only, and an explicit mask is passed as a bias.

  Attributes:
    implementation: 'cudnn', or 'xla', which computes the same on any platform.

  Raises:
    ValueError: for another implementation.
  """

  platforms = ('gpu',)

  implementation: str = 'cudnn'

  def __post_init__(self):
    if self.implementation not in IMPLEMENTATIONS:
      names = ' or '.join(map(repr, IMPLEMENTATIONS))
      raise ValueError(f'implementation={self.implementation!r} is unknown; use {names}')

  @property
  def names_residuals(self):
    return self.implementation == 'cudnn'  # policies know its primitive, one of `FUSED_ATTENTION`

  def unavailable_reason(self, platform):
    if self.implementation == 'xla':
      return None
    return super().unavailable_reason(platform) or unsupported_gpu_reason(mesh.gpu_capability(platform))

  def unsupported_reason(self, q, k, v, inputs):
    T, S, C = q.shape[1], k.shape[1], q.shape[3]
    if reason := inputs.unsupported_feature_reason() or unsupported_mask_reason(inputs, T, S):
      return reason
    if v.shape != k.shape:
      return f'its values must be as wide as its keys, not {v.shape[3]} against {C} channels'
    if self.implementation == 'cudnn':
      if q.dtype not in (jnp.float16, jnp.bfloat16) or not q.dtype == k.dtype == v.dtype:
        return f'it computes in float16 or bfloat16, not {q.dtype}'
      if C % 8 or C > 128:
        return f'its head width must be a multiple of 8 and at most 128, not {C}'
    return uneven_heads_reason(q.shape[2], k.shape[2])

  def attend(self, q, k, v, inputs):
    options = inputs.scale, mask_band(inputs.mask, q.shape[1], k.shape[1])
    attention = functools.partial(self.attend_local, options)
    # JAX partitions the fused call itself, except with a single key head or a sharded length.
    out = attend_per_device(attention, q, k, v, (inputs.q_segments, inputs.k_segments))
    return shard(out, 'batch', 'length', 'heads', 'kv'), None

  def attend_local(self, options, q, k, v, segments, sinks):
    """Attention over one device's rows and heads; `options` are the scale and the mask's band."""
    (scale, (left, right)), (q_segments, k_segments) = options, segments
    causal, lengths, valid = right == 0, None, q_segments != 0
    if not causal:
      keys = k_segments != 0
      # cuDNN needs at least one key, also in rows whose output is discarded.
      lengths = jnp.maximum(keys.sum(1, dtype=jnp.int32), 1)
      valid &= keys.any(1, keepdims=True)
      # cuDNN leaves the gradients of keys beyond the length undefined.
      k, v = (jnp.where(keys[:, :, None, None], x, 0) for x in (k, v))
    out = jax.nn.dot_product_attention(
      q,
      k,
      v,
      scale=scale,
      is_causal=causal,
      key_value_seq_lengths=lengths,
      local_window_size=None if left is None else (left, 0),
      implementation=self.implementation,
    )
    return jnp.where(valid[:, :, None, None], out, 0)


def unsupported_gpu_reason(capability: str | None) -> str | None:
  """Why cuDNN has no fused attention for a GPU; None if it has.

  Args:
    capability: the compute capability; not a number for another vendor's GPU, None if no GPU is attached.
  """
  if capability is None:
    return NO_GPU_ATTACHED
  major = capability.partition('.')[0]
  if major.isdigit() and int(major) >= 8:
    return None
  return f'it needs an NVIDIA GPU of compute capability 8.0 (Ampere) or later, not {capability!r}'
