"""Block-sparse flash attention for TPUs, from Pallas."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_mask

from tfm.kernels.protocol import Kernel
from tfm.parallel.attention import attend_per_device, uneven_heads_reason
from tfm.parallel.sharding import shard


# Blocks are made of whole vector registers, this many lanes wide.
LANES = 128


@dataclasses.dataclass(frozen=True)
class Splash(Kernel):
  """`jax.experimental.pallas.ops.tpu.splash_attention`: FlashAttention (Dao 2023) on what a mask leaves.

  The mask goes into the kernel as the predicate on indices that it is: any mask for rows of one document
  (layout 'contiguous'), a relative one for packed rows. Queries and keys are the same tokens, and each must see
  itself, since the kernel divides by the sum of what a query sees. Segments are compared for equality
  there, so that padding sees padding; what it gets is made zeros.

  Pallas kernels are not cut by the compiler: on a mesh this one runs in a `shard_map`, rows and heads cut
  as the rules say. There is no log-sum-exp, for the library's has no gradient.

  Attributes:
    block: tokens of a block at most, a multiple of 128; the largest such that divides the length is taken.
    interpret: whether to run it step by step on any platform, for tests.

  Raises:
    ValueError: for a block that is not a multiple of 128.
  """

  platforms = ('tpu',)

  block: int = 512
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
      return f'it takes as many keys as queries, a multiple of {LANES}, not {T} queries and {S} keys'
    if not (inputs.layout == 'contiguous' or inputs.layout == 'packed' and inputs.mask.relative):
      return (
        f'its mask is one of indices, which layout={inputs.layout!r} does not make of '
        f'{"a relative" if inputs.mask.relative else "this"} mask of positions'
      )
    at = np.arange(T)
    if not np.all(inputs.mask(at, at)):
      return 'its queries must see themselves, and the mask hides some'
    if q.dtype not in (jnp.bfloat16, jnp.float32):
      return f'it computes in bfloat16 or float32, and this is {q.dtype}'
    return uneven_heads_reason(H, K)

  def attend(self, q, k, v, inputs):
    q = q * jnp.asarray(inputs.scale, q.dtype)
    arrays = q, k, v, inputs.q_segments, inputs.k_segments, inputs.sinks
    out = attend_per_device(functools.partial(self.local, inputs.mask, inputs.soft_cap or None), *arrays)
    out = jnp.where(inputs.q_segments[:, :, None, None] != 0, out, 0).astype(v.dtype)
    return shard(out, 'batch', 'length', 'heads', 'kv'), None

  def local(self, mask, soft_cap, q, k, v, q_segments, k_segments, sinks):
    """The kernel on what one device has of rows and heads; q is scaled."""
    T, H = q.shape[1:3]
    block = max(size for size in range(LANES, min(self.block, T) + 1, LANES) if T % size == 0)
    fields = (field.name for field in dataclasses.fields(splash.BlockSizes))
    sizes = {name: block for name in fields if name.startswith('block_')}
    # Made here, while tracing, of the mask's blocks, which the library keeps in a cache: an array made
    # outside would have to live on a mesh that may not be this machine's.
    kernel = splash.make_splash_mha(
      splash_mask.MultiHeadMask([_Indices((T, T), Seen(mask))] * H),
      block_sizes=splash.BlockSizes(**sizes),
      attn_logits_soft_cap=soft_cap,
      head_shards=1,
      q_seq_shards=1,
      interpret=self.interpret,
    )
    out = jax.vmap(kernel, (0, 0, 0, 0, None))(
      *(x.swapaxes(1, 2) for x in (q, k, v)), splash.SegmentIds(q_segments, k_segments), sinks
    )
    return out.swapaxes(1, 2)


@dataclasses.dataclass(frozen=True)
class Seen:
  """A mask as the kernel calls it; equal masks make equal ones."""

  mask: object

  def __call__(self, q, k):
    return self.mask(q, k)


class _Indices(splash_mask._ComputableMask):
  """A mask that the kernel computes from indices."""

  def __eq__(self, other):
    return (type(self), self.shape, self.mask_function) == (type(other), other.shape, other.mask_function)

  def __hash__(self):
    return hash((type(self), self.shape, self.mask_function))
