"""Exact attention block by block: memory linear in length, for every mask, score and bias."""

import dataclasses
from collections.abc import Callable

import jax

from tfm.kernels import _blockwise
from tfm.kernels._blockwise import Blocks, Sizes
from tfm.kernels.protocol import Kernel
from tfm.parallel.sharding import shard


@dataclasses.dataclass(frozen=True)
class Chunked(Sizes, Kernel):
  """Attention by online softmax over blocks of keys (Rabe & Staats 2021; Milakov & Gimelshein 2018), its
  backward pass by hand from q, k, v, the output and its log-sum-exp (Dao et al. 2022, FlashAttention, alg. 4).

  For the keys s of each block in turn, with the running maximum m, denominator l and numerator a:

    m' = max(m, maxₛ logitₛ),  l' = l·e^(m-m') + Σₛ e^(logitₛ-m'),  a' = a·e^(m-m') + Σₛ e^(logitₛ-m') vₛ

  and out = a / l. Of the score, the bias and the cap it needs nothing but that they can be asked for a
  block. Which blocks the mask closes wholly is found on the host, from its `bounds`: those are not
  visited, and in those it opens wholly it is not asked. Blocks without a document in common are
  skipped when it comes to them.

  Attributes:
    queries, keys: tokens of a block.

  Raises:
    ValueError: for a block without tokens.
  """

  examples = ('chunked', 'chunked(queries=4, keys=5)')

  def unpreferred_reason(self, q, k, v, inputs, platform):
    T, S = q.shape[1], k.shape[1]
    # Measured (README, `tfm benchmark attention`): below, one block is all there is, and skips nothing.
    if T * S < 256 * 256:
      return 'queries and keys are no more than one block'
    return None

  def attend(self, q, k, v, inputs):
    T, H = q.shape[1:3]
    blocks = Blocks(min(self.queries, T), min(self.keys, k.shape[1]), T, k.shape[1])
    q, k, v, learned, inputs = _blockwise.laid_out(blocks, q, k, v, inputs)
    out, log_sum_exp = attention(blocks)(q, k, v, learned, inputs)
    out, log_sum_exp = _blockwise.taken_back(out.astype(v.dtype), log_sum_exp, T, H)
    return shard(out, 'batch', 'length', 'heads', 'kv'), log_sum_exp


def attention(blocks: Blocks) -> Callable:
  """`(q [B K G T C], k [B K S C], v, learned, asked) → out [B K G T C2] f32, log-sum-exp [B K G T] f32`.

  `learned` is (score, bias, sinks), `asked` the rest; a function with a backward pass of its own.
  """

  def forward(q, k, v, learned, inputs):
    whole = _blockwise.complete(inputs, learned)
    rows, _ = _blockwise.plan(inputs.mask, inputs.layout, blocks)
    sums = _blockwise.add(blocks, rows, _blockwise.start(blocks, q, v, whole), q, k, v, whole)
    out, log_sum_exp = _blockwise.finish(sums, whole)
    return (out, log_sum_exp), (q, k, v, learned, inputs, out, log_sum_exp)

  def backward(kept, cotangents):
    q, k, v, learned, inputs, out, log_sum_exp = kept
    whole, d_out = _blockwise.complete(inputs, learned), cotangents[0]
    _, columns = _blockwise.plan(inputs.mask, inputs.layout, blocks)
    inner = _blockwise.inner(out, *cotangents)
    *d_arrays, d_leaves = _blockwise.gradients(blocks, columns, q, k, v, whole, log_sum_exp, inner, d_out)
    d_arrays = (d.astype(x.dtype) for d, x in zip(d_arrays, (q, k, v)))
    return *d_arrays, _blockwise.learned_gradients(whole, d_leaves, log_sum_exp, inner), None

  run = jax.custom_vjp(lambda *args: forward(*args)[0])
  run.defvjp(forward, backward)
  return run
