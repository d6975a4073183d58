"""Block-sparse flash attention in Pallas for TPUs and GPUs, for every mask and for biases by distance."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from tfm.kernels._block_plan import BlockGrid
from tfm.kernels._blockwise import compute_delta, sink_gradient
from tfm.kernels._tile_order import make_plan
from tfm.kernels._tiles import Operands, Tiles
from tfm.kernels.protocol import CHECKPOINT_NAME, OF_TOKENS, Kernel
from tfm.layers import pallas
from tfm.layers.locations import Locations
from tfm.layers.pallas import LANES, LEAST, VMEM, is_block_size, pad_channels, padded_width
from tfm.parallel import mesh
from tfm.parallel.sharded_attention import attend_per_device, uneven_heads_reason
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Float
from tfm.spec import SizeOrZero


BLOCKS = 8 * 2**20  # of a TPU's memory for vectors: blocks and running sums, rounded up
SHARED = 2**15  # bytes of a GPU's shared memory for a block of keys; the compiler holds several there
# What `auto` chooses it for (docs/results/h200.md): GPUs with as much shared memory as an A100; rows of so
# many tokens; longer ones have plans of millions of tiles.
CAPABILITIES = '8.0', '9.0', '10.0'
SHORTEST, LONGEST = 512, 65_536


@dataclasses.dataclass(frozen=True)
class Flash(Kernel):
  """FlashAttention (Dao et al. 2022; Dao 2023) in Pallas, which is lowered to Mosaic or Triton.

  As in `chunked`, the tiles to visit follow from the mask's bounds while the program is traced: tiles that
  the mask hides are skipped. Tiles whose queries and keys share no document are skipped at run time.

  Supported are all masks, also with prefixes, packed rows, grouped heads, sinks, soft caps, and biases that
  depend on the distance and the head alone. The tiles along one diagonal of blocks have the same bias: these
  few are computed by XLA, the kernel adds them, and a kernel of its own sums their gradients.

  A kernel reads the keys and values of a whole row of one head; on a TPU they must fit into the memory for
  vectors. The compiler cannot partition Pallas kernels: on a mesh this one runs in a `shard_map`, with rows
  and heads sharded by the rules. JAX 0.12 calls Pallas' lowering to Triton deprecated, in favour of Mosaic's
  for GPUs.

  Attributes:
    block: the tokens of a block of queries and of keys, a power of two: at least 16 on a GPU, and a multiple
      of 128 on a TPU. 0: 64 on a GPU, the fastest on an H200 (docs/results/h200.md), and elsewhere 128.
    interpret: whether to run in interpreter mode on any platform, for tests.

  Raises:
    ValueError: for a block that is not a power of two of at least 16.
  """

  platforms = ('tpu', 'gpu')
  names_residuals = True

  block: SizeOrZero = 0
  interpret: bool = False

  def __post_init__(self):
    if self.block and not is_block_size(self.block):
      raise ValueError(f'block={self.block} must be a power of two, {LEAST} tokens or more')

  @property
  def tokens(self) -> int:
    """The tokens of a block on the current platform."""
    return self.block or (64 if pallas.target_platform(self.interpret) == 'gpu' else LANES)

  def unavailable_reason(self, platform):
    return None if self.interpret else super().unavailable_reason(platform)

  def unsupported_reason(self, q, k, v, inputs):
    if reason := inputs.unsupported_feature_reason('soft_cap', 'sinks', 'prefix', 'bias'):
      return reason
    if not q.dtype == k.dtype == v.dtype:
      return f'its queries, keys and values must have one type, not {q.dtype}, {k.dtype} and {v.dtype}'
    if inputs.bias is not None and not inputs.has_relative_bias:
      return 'the bias of the position depends on more than the distance and the head'
    if inputs.bias is not None and inputs.layout == 'arbitrary':
      return "it takes distances from indices, which layout='arbitrary' does not allow"
    if not self.interpret and mesh.current_platform() == 'tpu':
      if self.tokens % LANES:
        return f'on a TPU block={self.block} must be a multiple of {LANES}'
      needed, room = self.vector_memory(q, k, v, inputs), VMEM - BLOCKS
      if needed > room:
        return f'a row of one head takes {needed:,} bytes of memory for vectors, and {room:,} are for it'
    if not self.interpret and mesh.current_platform() == 'gpu':
      channels = max(padded_width(x.shape[3]) * x.dtype.itemsize for x in (k, v))
      needed, room = self.tokens * channels, SHARED // (1 if inputs.bias is None else 2)
      if needed > room:
        return f'{self.tokens} keys take {needed:,} bytes of shared memory, and {room:,} are for them'
    return uneven_heads_reason(q.shape[2], k.shape[2])

  def unpreferred_reason(self, q, k, v, inputs, platform):
    capability = mesh.gpu_capability(platform) if platform == 'gpu' else None
    if capability not in CAPABILITIES:
      return f'it was measured on an H200, and compiled for A100, H100 and B200, not for this {platform}'
    widest = max(k.shape[3], v.shape[3])
    if q.dtype != jnp.bfloat16 or widest > 128:
      return f'it was measured with at most 128 channels in bfloat16, not {widest} in {q.dtype}'
    T, S = q.shape[1], k.shape[1]
    if min(T, S) < SHORTEST or max(T, S) > LONGEST:
      few_or_many = 'few' if min(T, S) < SHORTEST else 'many'
      return f'{T:,} queries and {S:,} keys are {few_or_many}'
    return None

  def vector_memory(self, q: Array, k: Array, v: Array, inputs) -> int:
    """The bytes of what the most demanding kernel reads of one row and head on a TPU, in two buffers."""
    (T, S), b = (q.shape[1], k.shape[1]), self.tokens
    grid = BlockGrid(b, b, T, S)
    channels = (k.shape[3] + v.shape[3]) * k.dtype.itemsize
    needed = max(T, S) * channels  # keys and values, or queries and cotangents
    if inputs.bias is not None:
      needed += len(make_plan(inputs.mask, inputs.layout, grid).offsets) * b * b * 4
    if jax.tree.leaves(inputs.bias):
      # Its gradient reads both sides, and four numbers of each query in columns, a register's line for each.
      needed += min(T, S) * channels + 4 * T * LANES * 4
    return 2 * needed

  def attend(self, q, k, v, inputs):
    grid = BlockGrid(self.tokens, self.tokens, q.shape[1], k.shape[1])
    tiles = Tiles(inputs.mask, inputs.scale, inputs.soft_cap, self.tokens, self.interpret)
    is_learned = bool(jax.tree.leaves(inputs.bias))
    attention = differentiable_attention(grid, tiles, inputs.layout, is_learned)
    tokens = {name: getattr(inputs, name) for name in OF_TOKENS}
    bias = None if inputs.bias is None else bias_tiles(grid, inputs, q, k)
    out, log_sum_exp = attend_per_device(
      functools.partial(attend_local, grid, attention), q, k, v, tokens, (bias, inputs.sinks)
    )
    return shard(out, 'batch', 'length', 'heads', 'kv'), log_sum_exp[..., 0].swapaxes(1, 2)


def bias_tiles(
  grid: BlockGrid, inputs, q: Float[Array, 'B T H C'], k: Float[Array, 'B S K C']
) -> Float[Array, 'H D b b']:
  """The bias of the tiles along each visited diagonal of blocks, from the distances of their indices."""
  offsets = jnp.asarray(make_plan(inputs.mask, inputs.layout, grid).offsets)
  (_, _, H, C), K, b = q.shape, k.shape[2], grid.keys
  at = jnp.arange(b)[None] + jnp.zeros_like(offsets)[:, None]
  q_at, k_at = at + jnp.maximum(offsets, 0)[:, None], at - jnp.minimum(offsets, 0)[:, None]
  # The bias reads nothing of them but their shapes.
  q, k = jnp.zeros((len(offsets), K, H // K, b, C), q.dtype), jnp.zeros((len(offsets), K, b, C), k.dtype)
  bias = inputs.bias(q, k, *(Locations(x, jnp.ones_like(x)) for x in (q_at, k_at)))
  return jnp.broadcast_to(bias, (*q.shape[:4], b)).reshape(-1, H, b, b).swapaxes(0, 1)


def attend_local(grid: BlockGrid, attention: Callable, q, k, v, tokens: dict[str, Array], of_heads: tuple):
  """The output [B T H C2] and log-sum-exp [B T H 1] of one device's rows and heads.

  Args:
    tokens: the `OF_TOKENS`; of_heads: the tiles of the bias [H D b b] and the sinks, or None.
  """
  T, (bias, sinks) = q.shape[1], of_heads
  pads = dict(q=grid.pad_queries, k=grid.pad_keys)
  # Padded tokens get segment 0, which no query sees.
  tokens = {name: x if x is None else pads[name[0]](x, 1) for name, x in tokens.items()}
  q, k, v = (pads[side](x.swapaxes(1, 2), 2) for side, x in (('q', q), ('k', k), ('k', v)))
  width, sinks = v.shape[-1], None if sinks is None else sinks.astype(jnp.float32)[:, None, None]
  out, log_sum_exp = attention((*map(pad_channels, (q, k, v)), bias, sinks), tokens)
  return out[:, :, :T, :width].swapaxes(1, 2), log_sum_exp[:, :, :T].swapaxes(1, 2)


def differentiable_attention(grid: BlockGrid, tiles: Tiles, layout: str, is_learned: bool) -> Callable:
  """Attention with a backward pass of its own: `((q, k, v, bias, sinks), tokens) → (out, log-sum-exp)`.

  Args:
    is_learned: whether the bias has parameters, and needs its gradient.
  """
  plan = make_plan(tiles.mask, layout, grid)

  def prepare(arrays, tokens):
    *qkv, bias, sinks = arrays
    return Operands.of(*qkv, tokens, bias=bias, sinks=sinks)

  def visits(lines, tokens):
    return lines.visits(grid, tokens['q_segments'], tokens['k_segments'])

  def forward(arrays, tokens):
    operands = prepare(arrays, tokens)
    result = tiles.forward(visits(plan.by_query, tokens), operands, operands.v.dtype)
    out, log_sum_exp = (checkpoint_name(x, CHECKPOINT_NAME) for x in result)
    return (out, log_sum_exp), (arrays, tokens, out, log_sum_exp)

  def backward(residuals, cotangents):
    arrays, tokens, out, log_sum_exp = residuals
    d_out, d_log_sum_exp = cotangents
    operands = prepare(arrays, tokens)
    delta = compute_delta(out.astype(jnp.float32), d_out.astype(jnp.float32), d_log_sum_exp[..., 0])[
      ..., None
    ]
    operands = operands._replace(d_out=d_out, log_sum_exp=log_sum_exp, delta=delta)
    d_q = tiles.q_gradient(visits(plan.by_query, tokens), operands)
    d_k, d_v = tiles.kv_gradients(visits(plan.by_key, tokens), operands)
    d_bias = d_sinks = None
    if operands.bias is not None:
      along = visits(plan.by_diagonal, tokens)
      d_bias = tiles.bias_gradient(along, operands) if is_learned else jnp.zeros_like(operands.bias)
    if operands.sinks is not None:
      d_sinks = sink_gradient(operands.sinks[:, 0, 0], log_sum_exp[..., 0], delta[..., 0])[:, None, None]
    gradients = zip((d_q, d_k, d_v, d_bias, d_sinks), arrays)
    return tuple(x if d is None else d.astype(x.dtype) for d, x in gradients), None

  attention = jax.custom_vjp(lambda *args: forward(*args)[0])
  attention.defvjp(forward, backward)
  return attention
