"""cuDNN's fused attention, by way of JAX."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from tfm.kernels.protocol import NO_GPU_ATTACHED, Kernel, mask_band, unsupported_mask_reason
from tfm.parallel import mesh
from tfm.parallel.attention import attend_per_device, uneven_heads_reason
from tfm.parallel.sharding import shard


IMPLEMENTATIONS = ('cudnn', 'xla')


@dataclasses.dataclass(frozen=True)
class Cudnn(Kernel):
  """`jax.nn.dot_product_attention` with its fused implementation (FlashAttention: Dao et al. 2022; Dao 2023).

  It serves plain attention over rows of one document each (layout 'contiguous'), whose queries are the keys'
  own tokens: causal, causal with a window to the left, or full. A mask is known by what it shows, not by
  its name. Under a causal one, padding stands behind all that a token sees and needs no masking; under the
  full one cuDNN is told how many keys there are. What queries in the padding get is made zeros.

  There is no log-sum-exp: JAX hands it out in the type of q and without a gradient. There is no bias:
  cuDNN's gradient of one is right for one row only, and a mask is one.

  Attributes:
    implementation: 'cudnn', or 'xla', which computes the same anywhere.

  Raises:
    ValueError: for another implementation.
  """

  platforms = ('gpu',)

  implementation: str = 'cudnn'

  def __post_init__(self):
    if self.implementation not in IMPLEMENTATIONS:
      valid = ', '.join(map(repr, IMPLEMENTATIONS))
      raise ValueError(f'implementation={self.implementation!r} is not there; known: {valid}')

  def unavailable_reason(self, platform):
    if self.implementation == 'xla':
      return None
    return super().unavailable_reason(platform) or unsupported_gpu_reason(mesh.gpu_capability(platform))

  def unsupported_reason(self, q, k, v, inputs):
    T, S, C = q.shape[1], k.shape[1], q.shape[3]
    if reason := inputs.unsupported_feature_reason() or unsupported_mask_reason(inputs, T, S):
      return reason
    if v.shape != k.shape:
      return f'its values are as wide as its keys, not {v.shape[3]} by {C}'
    if self.implementation == 'cudnn':
      if q.dtype not in (jnp.float16, jnp.bfloat16) or not q.dtype == k.dtype == v.dtype:
        return f'it computes in float16 or bfloat16, and this is {q.dtype}'
      if C % 8 or C > 128:
        return f'its head width is a multiple of 8 and at most 128, not {C}'
    return uneven_heads_reason(q.shape[2], k.shape[2])

  def attend(self, q, k, v, inputs):
    left, right = mask_band(inputs.mask, q.shape[1], k.shape[1])
    attention = functools.partial(self.local, inputs.scale, left, right)
    # JAX would cut the fused call by itself, but for a single key head or a cut length.
    out = attend_per_device(attention, q, k, v, inputs.q_segments, inputs.k_segments)
    return shard(out, 'batch', 'length', 'heads', 'kv'), None

  def local(self, scale, left, right, q, k, v, q_segments, k_segments, sinks):
    """Attention over what one device has of rows and heads."""
    causal, lengths, valid = right == 0, None, q_segments != 0
    if not causal:
      keys = k_segments != 0
      # No weights can be made of no keys, not even those of a row that is thrown away.
      lengths = jnp.maximum(keys.sum(1, dtype=jnp.int32), 1)
      valid &= keys.any(1, keepdims=True)
      # Whatever is written as the gradient of a key behind the last.
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
  """Why cuDNN has no fused attention for a GPU; what is no number is another maker's, and None is of one that is not here."""
  if capability is None:
    return NO_GPU_ATTACHED
  major = capability.partition('.')[0]
  if major.isdigit() and int(major) >= 8:
    return None
  return f'it wants an NVIDIA GPU of compute capability 8.0 or later (Ampere), and this says {capability!r}'
