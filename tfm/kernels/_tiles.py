"""Attention in Pallas, tile by tile: a block of queries against a block of keys.

The kernels fold over the visited tiles: of each block of queries (the output, the gradient of q), of each
block of keys (the gradients of k and v), and of each diagonal of blocks (the gradient of a bias by distance).
They are written with what Pallas lowers to Mosaic for TPUs and to Triton for GPUs alike.

Letters: b tokens of a block, D diagonals of blocks; and those of `_tile_order`.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tfm.kernels._tile_order import Visits
from tfm.layers import pallas
from tfm.layers.pallas import matmul
from tfm.shapes import Array, Float, Int, PyTree


LOG2_E = float(np.log2(np.e))


class Tile(NamedTuple):
  """One visit: the blocks of queries and keys, the diagonal, and whether every pair is visible."""

  query: Int[Array, '']
  key: Int[Array, '']
  diagonal: Int[Array, ''] | None
  is_plain: bool


class Operands(NamedTuple):
  """What the kernels read: rows padded to whole blocks, heads before length; what has no heads has one.

  What is one number a token stands in a column for the queries and in a line for the keys, so that a tile is
  [queries, keys]; or the other way round (`transpose`), and a tile is [keys, queries].

  Attributes:
    bias: by diagonal and head, or None. sinks: one logit a head, or None.
    d_out: the cotangent of the output; log_sum_exp; delta: see `_blockwise.compute_delta`. All three for the
      backward pass alone.
  """

  q: Float[Array, 'B H T C']
  k: Float[Array, 'B K S C']
  v: Float[Array, 'B K S C2']
  q_positions: Int[Array, 'B 1 T 1']
  q_segments: Int[Array, 'B 1 T 1']
  k_positions: Int[Array, 'B 1 1 S']
  k_segments: Int[Array, 'B 1 1 S']
  k_prefix: Int[Array, 'B 1 1 S'] | None
  bias: Float[Array, 'H D b b'] | None
  sinks: Float[Array, 'H 1 1'] | None
  d_out: Float[Array, 'B H T C2'] | None = None
  log_sum_exp: Float[Array, 'B H T 1'] | None = None
  delta: Float[Array, 'B H T 1'] | None = None

  @classmethod
  def of(cls, q: Array, k: Array, v: Array, tokens: Mapping[str, Array | None], **of_heads) -> 'Operands':
    """The operands of a forward pass; `tokens` has positions, segments and prefixes [B T]."""
    columns = {name: x if x is None else x[:, None, :, None] for name, x in tokens.items()}
    lines = {name: x.swapaxes(2, 3) for name, x in columns.items() if x is not None and name.startswith('k')}
    return cls(q, k, v, **columns | lines, **dict(bias=None, sinks=None) | of_heads)

  def transpose(self) -> 'Operands':
    """The operands of tiles [keys, queries]: a kernel reads all queries of a row then, which a TPU stores in
    lines in a hundredth of the memory that columns take.
    """
    turned = (
      'q_positions',
      'q_segments',
      'k_positions',
      'k_segments',
      'k_prefix',
      'bias',
      'log_sum_exp',
      'delta',
    )
    values = {name: getattr(self, name) for name in turned}
    return self._replace(**{name: x if x is None else x.swapaxes(2, 3) for name, x in values.items()})


OF_QUERIES = frozenset({'q', 'q_positions', 'q_segments', 'd_out', 'log_sum_exp', 'delta'})
OF_KEYS = frozenset({'k', 'v', 'k_positions', 'k_segments', 'k_prefix'})


@dataclasses.dataclass(frozen=True)
class Tiles:
  """The kernels for one mask, scale and soft cap, with blocks of `block` tokens."""

  mask: Any
  scale: float
  soft_cap: float
  block: int
  interpret: bool

  def forward(self, visits: Visits, operands: Operands, dtype: Any) -> tuple[Array, Array]:
    """The output [B H T C2] in that dtype, and the log-sum-exp [B H T 1] in float32."""
    rows = operands.q.shape[:3]
    outputs = (*rows, operands.v.shape[-1], dtype), (*rows, 1, jnp.float32)
    return self.call(self.forward_line, OF_QUERIES, visits._replace(queries=None), operands, *outputs)

  def q_gradient(self, visits: Visits, operands: Operands) -> Array:
    """The gradient of q [B H T C], in float32."""
    output = *operands.q.shape, jnp.float32
    return self.call(self.q_gradient_line, OF_QUERIES, visits._replace(queries=None), operands, output)[0]

  def kv_gradients(self, visits: Visits, operands: Operands) -> tuple[Array, ...]:
    """The gradients of k [B K S C] and v [B K S C2], in float32."""
    (B, H), of_keys = operands.q.shape[:2], (operands.k, operands.v)
    outputs = ((B, H, *x.shape[2:], jnp.float32) for x in of_keys)
    visits, operands = visits._replace(keys=None), operands.transpose()
    of_heads = self.call(self.kv_gradients_line, OF_KEYS, visits, operands, *outputs)
    # The query heads of a group share their keys and values.
    return tuple(d.reshape(*x.shape[:2], -1, *x.shape[2:]).sum(2) for d, x in zip(of_heads, of_keys))

  def bias_gradient(self, visits: Visits, operands: Operands) -> Array:
    """The gradient of the bias [H D b b], in float32: row by row, so that its size is that of one row."""
    H, D, b, _ = operands.bias.shape
    every_row = dict(bias=operands.bias, sinks=operands.sinks)

    def add_row(total, row):
      visits, operands = jax.tree.map(lambda x: x[None], row)
      output = (1, H, D * b, b, jnp.float32)
      line = self.bias_gradient_line
      (one,) = self.call(line, frozenset(), visits, operands._replace(**every_row), output)
      return total + one.reshape(total.shape), None

    rows = visits, operands._replace(bias=None, sinks=None)
    return jax.lax.scan(add_row, jnp.zeros((H, D, b, b), jnp.float32), rows)[0]

  def call(
    self, line: Callable, own: frozenset[str], visits: Visits, operands: Operands, *outputs: tuple
  ) -> tuple[Array, ...]:
    """`line(visits, operands, number of the line, *outputs)` for every row, head and line.

    Args:
      own: the operands of which a line reads its own block alone; of the others it reads any tokens.
      outputs: their shapes [B H length width] and dtypes; each line writes a block of the length.
    """
    B, H = operands.q.shape[:2]
    if operands.bias is None:
      visits = visits._replace(diagonals=None)

    def spec(name, array):
      if array is None:
        return None
      if name == 'bias':
        return pl.BlockSpec((None, *array.shape[1:]), lambda row, head, line: (head, 0, 0, 0))
      if name == 'sinks':
        return self.scalars((None, 1, 1), lambda row, head, line: (head, 0, 0))
      group, (length, width) = H // array.shape[1], array.shape[2:]
      in_line = length == 1  # the tokens, not the channels

      def place(row, head, line):
        block = line if name in own else 0
        return row, jax.lax.div(head, group), *((0, block) if in_line else (block, 0))

      if name in own:
        length, width = (1, self.block) if in_line else (self.block, width)
      return pl.BlockSpec((None, None, length, width), place)

    of_operands = Operands(*(spec(name, x) for name, x in operands._asdict().items()))
    of_visits = jax.tree.map(
      lambda x: self.scalars((None, *x.shape[1:]), lambda row, head, line: (row, 0, 0)), visits
    )

    def kernel(visits, operands, *outputs):
      line(visits, operands, pl.program_id(2), *outputs)

    return pl.pallas_call(
      kernel,
      grid=(B, H, visits.starts.shape[-1]),
      in_specs=(of_visits, of_operands),
      out_specs=[
        pl.BlockSpec((None, None, self.block, width), lambda row, head, line: (row, head, line, 0))
        for *_, width, _ in outputs
      ],
      out_shape=[jax.ShapeDtypeStruct(shape, dtype) for *shape, dtype in outputs],
      interpret=self.interpret,
      compiler_params=pallas.compiler_params(self.interpret, warps=max(4, self.block // 16), stages=3),
      name=f'flash_{line.__name__.removesuffix("_line")}',
    )(visits, operands)

  def scalars(self, *block) -> pl.BlockSpec:
    """A spec for numbers that are read one by one, which a TPU has a memory for."""
    is_tpu = pallas.target_platform(self.interpret) == 'tpu'
    return pl.BlockSpec(*block, **(dict(memory_space=pltpu.SMEM) if is_tpu else {}))

  def forward_line(self, visits, operands, line, out_ref, log_sum_exp_ref):
    """One block of queries: the online softmax over its tiles (see `tfm.kernels.chunked.Chunked`)."""
    q = operands.q[...]

    def add(sums, tile):
      maximum, denominator, numerator = sums
      k, v = (self.load(x, tile.key) for x in (operands.k, operands.v))
      logits = self.logits(tile, operands, q, k)
      if not tile.is_plain:
        logits = jnp.where(self.visible(tile, operands), logits, -jnp.inf)
      new_maximum = jnp.maximum(maximum, logits.max(1, keepdims=True))
      # Before the first visible key it is -inf; any finite number avoids -inf - -inf.
      finite = jnp.where(new_maximum == -jnp.inf, 0.0, new_maximum)
      weights, rescale = jnp.exp2(logits - finite), jnp.exp2(maximum - finite)
      return (
        new_maximum,
        denominator * rescale + weights.sum(1, keepdims=True),
        numerator * rescale + matmul(weights.astype(v.dtype), v),
      )

    # A sink counts as a first key with a value of zero.
    sink, of_sink = (-jnp.inf, 0.0) if operands.sinks is None else (LOG2_E * operands.sinks[0, 0], 1.0)
    column = self.block, 1
    maximum, denominator = jnp.full(column, sink, jnp.float32), jnp.full(column, of_sink, jnp.float32)
    numerator = jnp.zeros(out_ref.shape, jnp.float32)
    maximum, denominator, numerator = fold(visits, line, add, (maximum, denominator, numerator))
    nonzero = jnp.where(denominator == 0, 1.0, denominator)
    out_ref[...] = (numerator / nonzero).astype(out_ref.dtype)
    log_sum_exp_ref[...] = jnp.where(denominator == 0, -jnp.inf, (maximum + jnp.log2(nonzero)) / LOG2_E)

  def q_gradient_line(self, visits, operands, line, d_q_ref):
    """One block of queries: scale · Σ over its tiles of d_logits k."""
    of_queries = tuple(x[...] for x in (operands.q, operands.d_out, operands.log_sum_exp, operands.delta))

    def add(d_q, tile):
      k, v = (self.load(x, tile.key) for x in (operands.k, operands.v))
      d_logits = self.weights_and_gradient(tile, operands, of_queries, (k, v))[1]
      return d_q + matmul(d_logits.astype(k.dtype), k)

    zeros = jnp.zeros(d_q_ref.shape, jnp.float32)
    d_q_ref[...] = self.scale * fold(visits, line, add, zeros)

  def kv_gradients_line(self, visits, operands, line, d_k_ref, d_v_ref):
    """One block of keys: Σ over its tiles [keys, queries] of scale · d_logits q and weights d_out."""
    of_keys = operands.k[...], operands.v[...]

    def add(sums, tile):
      d_k, d_v = sums
      q, d_out, *_ = of_queries = self.load_queries(tile, operands)
      weights, d_logits = self.weights_and_gradient(tile, operands, of_queries, of_keys)
      d_v += matmul(weights.astype(d_out.dtype), d_out)
      return d_k + matmul(d_logits.astype(q.dtype), q), d_v

    zeros = tuple(jnp.zeros(ref.shape, jnp.float32) for ref in (d_k_ref, d_v_ref))
    d_k, d_v = fold(visits, line, add, zeros)
    d_k_ref[...], d_v_ref[...] = self.scale * d_k, d_v

  def bias_gradient_line(self, visits, operands, line, d_bias_ref):
    """One diagonal of blocks: Σ over its tiles of d_logits."""

    def add(total, tile):
      of_keys = tuple(self.load(x, tile.key) for x in (operands.k, operands.v))
      of_queries = self.load_queries(tile, operands)
      return total + self.weights_and_gradient(tile, operands, of_queries, of_keys)[1]

    d_bias_ref[...] = fold(visits, line, add, jnp.zeros(d_bias_ref.shape, jnp.float32))

  def load_queries(self, tile: Tile, operands: Operands) -> tuple[Array, ...]:
    """What the gradient of a tile needs of its queries: q, d_out, log-sum-exp and delta."""
    names = operands.q, operands.d_out, operands.log_sum_exp, operands.delta
    return tuple(self.load(x, tile.query) for x in names)

  def logits(self, tile: Tile, operands: Operands, q: Array, k: Array) -> Array:
    """The capped logits of a tile before masking, times log2(e): a GPU raises 2, not e, to a power."""
    products = self.pairs(operands, q, k)
    if operands.bias is None and not self.soft_cap:
      return (LOG2_E * self.scale) * products
    logits = self.scale * products
    if operands.bias is not None:
      logits += operands.bias[tile.diagonal]
    return LOG2_E * (self.soft_cap * jnp.tanh(logits / self.soft_cap) if self.soft_cap else logits)

  def visible(self, tile: Tile, operands: Operands) -> Array:
    """Which pairs of a tile are visible."""
    q_positions, q_segments = (self.load(x, tile.query) for x in (operands.q_positions, operands.q_segments))
    k_positions, k_segments, k_prefix = (
      x if x is None else self.load(x, tile.key)
      for x in (operands.k_positions, operands.k_segments, operands.k_prefix)
    )
    shown = self.mask.bind_prefix(k_prefix)(q_positions, k_positions)
    return shown & (q_segments == k_segments) & (k_segments != 0)

  def weights_and_gradient(
    self, tile: Tile, operands: Operands, of_queries: tuple, of_keys: tuple
  ) -> tuple[Array, Array]:
    """The weights of a tile, and the gradient of its logits before the soft cap.

    Args:
      of_queries: as `load_queries`; of_keys: k and v.
    """
    (q, d_out, log_sum_exp, delta), (k, v) = of_queries, of_keys
    logits = self.logits(tile, operands, q, k)
    weights = jnp.exp2(logits - LOG2_E * log_sum_exp)
    if not tile.is_plain:
      weights = jnp.where(self.visible(tile, operands), weights, 0.0)
    d_logits = weights * (self.pairs(operands, d_out, v) - delta)
    if self.soft_cap:
      d_logits *= 1 - (logits / (LOG2_E * self.soft_cap)) ** 2
    return weights, d_logits

  def pairs(self, operands: Operands, of_queries: Array, of_keys: Array) -> Array:
    """The dot product of each query's channels with each key's."""
    a, b = (of_queries, of_keys) if operands.k_positions.shape[0] == 1 else (of_keys, of_queries)
    return matmul(a, b, contract=(1, 1))

  def load(self, ref: Any, block: Int[Array, '']) -> Array:
    """A block of tokens of what a kernel reads, which may be that block alone."""
    axis = 1 if ref.shape[0] == 1 else 0
    if ref.shape[axis] == self.block:
      return ref[...]
    tokens = pl.ds(pl.multiple_of(block * self.block, self.block), self.block)
    return ref[:, tokens] if axis else ref[tokens, :]


def fold(visits: Visits, line: Int[Array, ''], add: Callable, carry: PyTree) -> PyTree:
  """Folds `add(carry, tile)` over the tiles that a line visits."""

  def step(is_plain, n, carry):
    query, key = (line if blocks is None else blocks[0, n] for blocks in (visits.queries, visits.keys))
    diagonal = None if visits.diagonals is None else visits.diagonals[0, n]
    return add(carry, Tile(query, key, diagonal, is_plain))

  start, plain, end = (x[0, line] for x in (visits.starts, visits.plain, visits.ends))
  carry = jax.lax.fori_loop(start, plain, functools.partial(step, True), carry)
  return jax.lax.fori_loop(plain, end, functools.partial(step, False), carry)
