"""Exact attention block by block: memory linear in length, for every mask, score and blockwise bias."""

import dataclasses
from collections.abc import Callable

import jax

from tfm.kernels import _block_plan, _blockwise
from tfm.kernels._block_plan import BlockGrid, BlockSizes
from tfm.kernels._blockwise import OutputGradients
from tfm.kernels.protocol import Kernel
from tfm.parallel.sharding import shard, shard_by_rules_here


@dataclasses.dataclass(frozen=True)
class Chunked(BlockSizes, Kernel):
  """Attention by online softmax over blocks of keys (Rabe & Staats 2021; Milakov & Gimelshein 2018).

  For each block of keys s, with the running maximum m, denominator l and numerator a:

    m' = max(m, maxₛ logitₛ),  l' = l·e^(m-m') + Σₛ e^(logitₛ-m'),  a' = a·e^(m-m') + Σₛ e^(logitₛ-m') vₛ

  and out = a / l. The backward pass recomputes the logits of each block from q, k, v, the output and its
  log-sum-exp (Dao et al. 2022, FlashAttention, alg. 4). Score, bias and cap are computed per block.

  When the program is traced, the blocks to visit follow from the mask's bounds: blocks that the mask hides
  completely are skipped, and the mask is not evaluated in blocks that it shows completely. Blocks whose
  queries and keys share no document (segment) are skipped at run time.

  Shapes: B rows, K key heads, G query heads for each key head, H = K G, T queries, S keys, C channels of
  keys, C2 of values.

  Attributes:
    queries, keys: the largest number of tokens in a block of queries, and of keys.

  Raises:
    ValueError: for a block size below 1.
  """

  examples = ('chunked', 'chunked(queries=4, keys=5)')
  names_residuals = True

  def unsupported_reason(self, q, k, v, inputs):
    return inputs.not_blockwise_reason()

  def unpreferred_reason(self, q, k, v, inputs, platform):
    T, S = q.shape[1], k.shape[1]
    # Measured (docs/results/speed.md, `tfm benchmark attention`).
    if T * S < 256 * 256:
      return f'{T} queries and {S} keys are few'
    return None

  def attend(self, q, k, v, inputs):
    T = q.shape[1]
    grid = self.divide(T, k.shape[1])
    q, k, v, learned, inputs = _block_plan.pad_to_blocks(grid, q, k, v, inputs)
    out, log_sum_exp = differentiable_attention(grid)(q, k, v, learned, inputs)
    out, log_sum_exp = _block_plan.unpad(out.astype(v.dtype), log_sum_exp, T)
    return shard(out, 'batch', 'length', 'heads', 'kv'), log_sum_exp


def differentiable_attention(grid: BlockGrid) -> Callable:
  """Attention over a grid of blocks, with a backward pass of its own (`jax.custom_vjp`).

  Returns:
    `(q [B T H C], k [B S K C], v, learned, inputs) → out [B T H C2] f32, log-sum-exp [B K G T] f32`,
    where `learned` is (score, bias, sinks) and `inputs` has the other `AttentionInputs`.
  """
  # As whole rows of some heads are, else the compiler may exchange what the gradient takes from it.
  shard_output = shard_by_rules_here('batch', None if grid.T % grid.queries else 'length', 'heads', 'kv')

  def forward(q, k, v, learned, inputs):
    all_inputs = _block_plan.merge_inputs(inputs, learned)
    key_visits, _ = _block_plan.plan_visits(inputs.mask, inputs.layout, grid)
    out, log_sum_exp = _blockwise.attend_all(grid, key_visits, (q, k, v), all_inputs)
    out = shard_output(out)
    return (out, log_sum_exp), (q, k, v, learned, inputs, out, log_sum_exp)

  def backward(residuals, cotangents):
    q, k, v, learned, inputs, out, log_sum_exp = residuals
    all_inputs = _block_plan.merge_inputs(inputs, learned)
    plans = _block_plan.plan_visits(inputs.mask, inputs.layout, grid)
    at_output = OutputGradients.of(out, log_sum_exp, cotangents)
    *d_qkv, d_leaves = _blockwise.input_gradients(grid, plans, (q, k, v), all_inputs, at_output)
    d_qkv = (d.astype(x.dtype) for d, x in zip(d_qkv, (q, k, v)))
    d_learned = _blockwise.learned_gradients(all_inputs, d_leaves, log_sum_exp, at_output.delta)
    return *d_qkv, d_learned, None

  attention = jax.custom_vjp(lambda *args: forward(*args)[0])
  attention.defvjp(forward, backward)
  return attention
