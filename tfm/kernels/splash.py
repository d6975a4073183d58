"""Block-sparse flash attention for TPUs, from Pallas."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_mask

from tfm.kernels.protocol import CHECKPOINT_NAME, Kernel
from tfm.parallel.sharded_attention import attend_per_device, uneven_heads_reason
from tfm.parallel.sharding import shard
from tfm.spec import Size


# A block is a whole number of vector registers, each this many lanes wide.
LANES = 128


@dataclasses.dataclass(frozen=True)
class Splash(Kernel):
  """`jax.experimental.pallas.ops.tpu.splash_attention`: block-sparse FlashAttention (Dao 2023).

  The mask is compiled into the kernel as a predicate on indices: any mask for rows of one document (layout
  'contiguous'), a relative mask for packed rows. Supports self-attention only, and every query must see
  itself, because the kernel divides by the sum over visible keys. The kernel compares segments for equality,
  so padding attends to padding; those outputs are set to zero.

  The compiler cannot partition Pallas kernels: on a mesh this one runs in a `shard_map`, with rows and heads
  sharded by the rules. It returns no log-sum-exp, because the library's has no gradient.

  Attributes:
    block: the largest block size in tokens, a multiple of 128; the largest such divisor of the length is
      used.
    interpret: whether to run in interpreter mode on any platform, for tests.

  Raises:
    ValueError: for a block that is not a multiple of 128.
  """

  platforms = ('tpu',)
  names_residuals = True

  block: Size = 512
  interpret: bool = False

  def __post_init__(self):
    if self.block < 1 or self.block % LANES:
      raise ValueError(f'block={self.block} must be a multiple of {LANES} tokens')

  def unavailable_reason(self, platform):
    return None if self.interpret else super().unavailable_reason(platform)

  def unsupported_reason(self, q, k, v, inputs):
    T, S, H, K = q.shape[1], k.shape[1], q.shape[2], k.shape[2]
    if reason := inputs.unsupported_feature_reason('soft_cap', 'sinks'):
      return reason
    if T != S or T % LANES:
      return f'it needs as many keys as queries, a multiple of {LANES}, not {T} queries and {S} keys'
    if not (inputs.layout == 'contiguous' or inputs.layout == 'packed' and inputs.mask.relative):
      return (
        f'it evaluates masks on indices, which layout={inputs.layout!r} does not allow for '
        f'{"a relative" if inputs.mask.relative else "this"} mask'
      )
    indices = np.arange(T)
    if not np.all(inputs.mask(indices, indices)):
      return 'every query must see itself, and the mask hides some from themselves'
    if q.dtype not in (jnp.bfloat16, jnp.float32):
      return f'it computes in bfloat16 or float32, not {q.dtype}'
    return uneven_heads_reason(H, K)

  def attend(self, q, k, v, inputs):
    q = q * jnp.asarray(inputs.scale, q.dtype)
    arrays = q, k, v, (inputs.q_segments, inputs.k_segments), inputs.sinks
    out = attend_per_device(
      functools.partial(self.attend_local, (inputs.mask, inputs.soft_cap or None)), *arrays
    )
    out = jnp.where(inputs.q_segments[:, :, None, None] != 0, out, 0).astype(v.dtype)
    return shard(out, 'batch', 'length', 'heads', 'kv'), None

  def attend_local(self, options, q, k, v, segments, sinks):
    """The kernel on one device's rows and heads; `options` are mask and soft cap, q is already scaled."""
    mask, soft_cap = options
    T, H = q.shape[1:3]
    block = max(size for size in range(LANES, min(self.block, T) + 1, LANES) if T % size == 0)
    fields = (field.name for field in dataclasses.fields(splash.BlockSizes))
    sizes = {name: block for name in fields if name.startswith('block_')}
    # Built while tracing, from mask blocks that the library caches: an array built outside the trace would
    # have to live on a mesh whose devices may not be attached.
    kernel = splash.make_splash_mha(
      splash_mask.MultiHeadMask([_IndexMask((T, T), MaskFunction(mask))] * H),
      block_sizes=splash.BlockSizes(**sizes),
      attn_logits_soft_cap=soft_cap,
      residual_checkpoint_name=CHECKPOINT_NAME,
      head_shards=1,
      q_seq_shards=1,
      interpret=self.interpret,
    )
    out = jax.vmap(kernel, (0, 0, 0, 0, None))(
      *(x.swapaxes(1, 2) for x in (q, k, v)), splash.SegmentIds(*segments), sinks
    )
    return out.swapaxes(1, 2)


@dataclasses.dataclass(frozen=True)
class MaskFunction:
  """A mask as the kernel calls it; comparable by its mask, so that equal masks share one compiled kernel."""

  mask: object

  def __call__(self, q, k):
    return self.mask(q, k)


class _IndexMask(splash_mask._ComputableMask):
  """A mask that the kernel evaluates on indices."""

  def __eq__(self, other):
    return (type(self), self.shape, self.mask_function) == (type(other), other.shape, other.mask_function)

  def __hash__(self):
    return hash((type(self), self.shape, self.mask_function))
