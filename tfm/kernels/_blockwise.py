"""Attention block by block: which blocks to visit, sums over blocks of keys, and their gradients by hand.

What the blockwise kernels have in common. Wherever `asked` is named, it is `tfm.kernels.protocol.Asked`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tfm.layers.segments import same_document
from tfm.shapes import Array, Bool, Float, Int, PyTree


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Tokens of a block, at most.

  Raises:
    ValueError: for a block without tokens.
  """

  queries: int = 256
  keys: int = 512

  def __post_init__(self):
    for field in ('queries', 'keys'):
      if getattr(self, field) < 1:
        raise ValueError(f'{field}={getattr(self, field)} must be at least 1 token')


@dataclasses.dataclass(frozen=True)
class Blocks:
  """T queries in blocks of `queries`, S keys in blocks of `keys`; the last ones are padded."""

  queries: int
  keys: int
  T: int
  S: int

  @property
  def shape(self) -> tuple[int, int]:
    """How many blocks of queries and of keys."""
    return -(-self.T // self.queries), -(-self.S // self.keys)

  def pad_queries(self, x: Array, axis: int) -> Array:
    return _padded(x, axis, self.shape[0] * self.queries)

  def pad_keys(self, x: Array, axis: int) -> Array:
    return _padded(x, axis, self.shape[1] * self.keys)

  def of_queries(self, x: Array, i: Int[Array, ''], axis: int) -> Array:
    """Block i of an array with the queries along `axis`."""
    return jax.lax.dynamic_slice_in_dim(x, i * self.queries, self.queries, axis)

  def of_keys(self, x: Array, j: Int[Array, ''], axis: int) -> Array:
    """Block j of an array with the keys along `axis`."""
    return jax.lax.dynamic_slice_in_dim(x, j * self.keys, self.keys, axis)


def _padded(x: Array, axis: int, size: int) -> Array:
  widths = [(0, 0)] * x.ndim
  widths[axis] = (0, size - x.shape[axis])
  return jnp.pad(x, widths) if size > x.shape[axis] else x


class Plan(NamedTuple):
  """The blocks to visit, line by line: those of line i are `others[starts[i]:starts[i + 1]]`.

  `open` tells of each whether the mask shows all of it.
  """

  starts: np.ndarray
  others: np.ndarray
  open: np.ndarray

  @classmethod
  def of(cls, live: Bool[np.ndarray, 'I J'], certain: Bool[np.ndarray, 'I J']) -> 'Plan':
    lines, others = np.nonzero(live)
    starts = np.searchsorted(lines, np.arange(len(live) + 1))
    return cls(starts.astype(np.int32), others.astype(np.int32), certain[lines, others].astype(np.int32))


@functools.lru_cache(maxsize=64)
def plan(mask: Callable, layout: str, blocks: Blocks) -> tuple[Plan, Plan]:
  """The blocks of keys for each block of queries, and the blocks of queries for each block of keys."""
  live, certain = shown(
    mask,
    layout,
    *(
      np.arange(count * size).reshape(count, size)
      for count, size in zip(blocks.shape, (blocks.queries, blocks.keys))
    ),
  )
  return Plan.of(live, certain), Plan.of(live.T, certain.T)


def shown(
  mask: Callable, layout: str, queries: Int[np.ndarray, 'I T'], keys: Int[np.ndarray, 'J S']
) -> tuple[Bool[np.ndarray, 'I J'], Bool[np.ndarray, 'I J']]:
  """Whether the mask may show something, and certainly shows all, of blocks of queries and keys at some indices."""
  live, certain = np.ones((2, len(queries), len(keys)), bool)
  runs = [(np.diff(x) == 1).all(1) for x in (queries, keys)]
  found = {}
  for i, j in np.ndindex(live.shape):
    # Of a relative mask all blocks along a diagonal are one.
    at = queries[i, 0] - keys[j, 0] if mask.relative and runs[0][i] and runs[1][j] else (i, j)
    if at not in found:
      certainly, possibly = mask.bounds(queries[i][:, None], keys[j][None, :], layout)
      found[at] = possibly.any(), certainly.all()
    live[i, j], certain[i, j] = found[at]
  return live, certain


def laid_out(
  blocks: Blocks,
  q: Float[Array, 'B T H C'],
  k: Float[Array, 'B S K C'],
  v: Float[Array, 'B S K C2'],
  inputs: Any,
) -> tuple[Array, Array, Array, PyTree, Any]:
  """q [B K G T C], k [B K S C], v, (score, bias, sinks), and what else is asked; all in whole blocks."""
  B, T, H, C = q.shape
  K = k.shape[2]
  q = blocks.pad_queries(q.reshape(B, T, K, H // K, C).transpose(0, 2, 3, 1, 4), 3)
  k, v = blocks.pad_keys(k.swapaxes(1, 2), 2), blocks.pad_keys(v.swapaxes(1, 2), 2)
  # Padded tokens are in segment 0, which nobody sees.
  rest = inputs.replace(
    q_positions=blocks.pad_queries(inputs.q_positions, 1),
    q_segments=blocks.pad_queries(inputs.q_segments, 1),
    k_positions=blocks.pad_keys(inputs.k_positions, 1),
    k_segments=blocks.pad_keys(inputs.k_segments, 1),
    k_prefix=None if inputs.k_prefix is None else blocks.pad_keys(inputs.k_prefix, 1),
    score=None,
    bias=None,
    sinks=None,
  )
  return q, k, v, (inputs.score, inputs.bias, inputs.sinks), rest


def taken_back(
  out: Float[Array, 'B K G T C2'], log_sum_exp: Float[Array, 'B K G T'], T: int, H: int
) -> tuple[Float[Array, 'B T H C2'], Float[Array, 'B H T']]:
  """The output and the log-sum-exp of the T queries that there were."""
  out = out[..., :T, :].reshape(len(out), H, T, -1).swapaxes(1, 2)
  return out, log_sum_exp[..., :T].reshape(len(out), H, T)


def complete(inputs: Any, learned: PyTree) -> Any:
  """The parts together again."""
  score, bias, sinks = learned
  return inputs.replace(score=score, bias=bias, sinks=sinks)


@dataclasses.dataclass(frozen=True)
class _Tile:
  """Block i of the queries against block j of the keys."""

  blocks: Blocks
  inputs: Any
  i: Int[Array, '']
  j: Int[Array, '']

  def logits(self, q: Array, k: Array, score: Callable, bias: Callable | None) -> Float[Array, 'B K G T S']:
    q_positions = self.blocks.of_queries(self.inputs.q_positions, self.i, 1)
    k_positions = self.blocks.of_keys(self.inputs.k_positions, self.j, 1)
    return self.inputs.replace(score=score, bias=bias).logits(q, k, q_positions, k_positions)

  def seen(self, wholly: bool) -> Bool[Array, 'B 1 1 T S']:
    """Which pairs stand in one document and are shown by the mask, not asked where it shows them wholly."""
    inputs, blocks = self.inputs, self.blocks
    seen = same_document(
      blocks.of_queries(inputs.q_segments, self.i, 1), blocks.of_keys(inputs.k_segments, self.j, 1)
    )
    if not wholly:
      prefix = None if inputs.k_prefix is None else blocks.of_keys(inputs.k_prefix, self.j, 1)[:, None, :]
      q, k = blocks.of_queries(inputs.q_positions, self.i, 1), blocks.of_keys(inputs.k_positions, self.j, 1)
      seen &= inputs.mask.bind_prefix(prefix)(q[:, :, None], k[:, None, :])
    return seen[:, None, None]

  def dropped(self, weights: Float[Array, 'B K G T S']) -> Float[Array, 'B K G T S']:
    """The weights, or their cotangents, after dropout."""
    if not self.inputs.uses_dropout:
      return weights
    # A tile's indices may lie in the padding, where the weights are zero.
    kept = self.inputs.dropout_keep_mask(
      weights.shape[:3],
      self.i * self.blocks.queries + jnp.arange(self.blocks.queries),
      self.j * self.blocks.keys + jnp.arange(self.blocks.keys),
      self.blocks.T,
    )
    return jnp.where(kept, weights / (1 - self.inputs.dropout), 0)


def common(blocks: Blocks, inputs: Any) -> Bool[Array, 'I J']:
  """Whether some row of two blocks may have a document in common, by the first and last of each block."""

  def ends(segments, size):
    segments = segments.reshape(len(segments), -1, size)
    return jnp.where(segments > 0, segments, np.iinfo(np.int32).max).min(-1), segments.max(-1)

  (q_low, q_high), (k_low, k_high) = (
    ends(inputs.q_segments, blocks.queries),
    ends(inputs.k_segments, blocks.keys),
  )
  meet = (q_low[:, :, None] <= k_high[:, None, :]) & (k_low[:, None, :] <= q_high[:, :, None])
  return meet.any(0)


def _visit(line: Plan, i: Int[Array, ''], met: Bool[Array, 'J'], fold: Callable, carry: PyTree) -> PyTree:
  """Folds `fold(carry, j, kind)` over the blocks j of line i; kind: 0 without a document in common, 1, 2 wholly open."""

  def step(at, carry):
    j = jnp.asarray(line.others)[at]
    return fold(carry, j, jnp.where(met[j], 1 + jnp.asarray(line.open)[at], 0))

  starts = jnp.asarray(line.starts)
  return jax.lax.fori_loop(starts[i], starts[i + 1], step, carry)


def start(blocks: Blocks, q: Float[Array, 'B K G T C'], v: Float[Array, 'B K S C2'], inputs: Any) -> PyTree:
  """The sums of every block of queries before any key has come."""
  one = NORMALIZERS[inputs.normalizer].start(inputs, (*q.shape[:3], blocks.queries), v.shape[-1])
  return jax.tree.map(lambda x: jnp.broadcast_to(x[None], (blocks.shape[0], *x.shape)), one)


def add(
  blocks: Blocks,
  rows: Plan,
  sums: PyTree,
  q: Float[Array, 'B K G T C'],
  k: Float[Array, 'B K S C'],
  v: Float[Array, 'B K S C2'],
  inputs: Any,
) -> PyTree:
  """The sums with what some keys add; `rows` says which of their blocks each block of queries visits."""
  met, normalizer = common(blocks, inputs), NORMALIZERS[inputs.normalizer]

  def line(at):
    i, carry = at
    q_i = blocks.of_queries(q, i, 3)

    def fold(carry, j, kind):
      def tile(wholly):
        here = _Tile(blocks, inputs, i, j)
        logits = here.logits(q_i, blocks.of_keys(k, j, 2), inputs.score, inputs.bias)
        return normalizer.add(carry, logits, here.seen(wholly), here.dropped, blocks.of_keys(v, j, 2), inputs)

      return jax.lax.switch(kind, [lambda: carry, lambda: tile(False), lambda: tile(True)])

    return _visit(rows, i, met[i], fold, carry)

  return jax.lax.map(line, (jnp.arange(blocks.shape[0]), sums))


def finish(sums: PyTree, inputs: Any) -> tuple[Float[Array, 'B K G T C2'], Float[Array, 'B K G T']]:
  """The output, and the log-sum-exp, which is zeros where the normalizer has none."""
  out, log_sum_exp = NORMALIZERS[inputs.normalizer].finish(sums)
  out, log_sum_exp = jnp.moveaxis(out, 0, 3), jnp.moveaxis(log_sum_exp, 0, 3)
  return out.reshape(*out.shape[:3], -1, out.shape[-1]), log_sum_exp.reshape(*log_sum_exp.shape[:3], -1)


def inner(out: Array, d_out: Array, d_log_sum_exp: Array) -> Float[Array, 'B K G T']:
  """Σ over keys of weight · d weight, without the weights (Dao et al. 2022, eq. 4); a cotangent of the log-sum-exp reaches
  the logits in the same way."""
  return (out * d_out).sum(-1) - d_log_sum_exp


def gradients(
  blocks: Blocks,
  columns: Plan,
  q: Float[Array, 'B K G T C'],
  k: Float[Array, 'B K S C'],
  v: Float[Array, 'B K S C2'],
  inputs: Any,
  log_sum_exp: Float[Array, 'B K G T'],
  inner: Float[Array, 'B K G T'],
  d_out: Float[Array, 'B K G T C2'],
) -> tuple[Array, Array, Array, list[Array]]:
  """What some keys add to the cotangents of q and of the leaves of (score, bias), and those of k and v, all in float32: one
  pass over the tiles, whose logits are made again; `columns` says which blocks of queries each block of keys visits."""
  met, normalizer = common(blocks, inputs), NORMALIZERS[inputs.normalizer]
  d_out = d_out.astype(v.dtype)
  leaves, rebuild = floating((inputs.score, inputs.bias))

  def line(carry, j):
    k_j, v_j = blocks.of_keys(k, j, 2), blocks.of_keys(v, j, 2)

    def fold(carry, i, kind):
      q_i = blocks.of_queries(q, i, 3)

      def tile(wholly):
        here, d_out_i = _Tile(blocks, inputs, i, j), blocks.of_queries(d_out, i, 3)
        logits, back = jax.vjp(lambda q, k, leaves: here.logits(q, k, *rebuild(leaves)), q_i, k_j, leaves)
        weights = normalizer.weights(logits, here.seen(wholly), blocks.of_queries(log_sum_exp, i, 3), inputs)
        d_weights = here.dropped(over_channels(d_out_i, v_j))
        d_q_i, d_k, d_leaves = back(normalizer.gradient(weights, d_weights, blocks.of_queries(inner, i, 3)))
        return d_q_i, d_k, over_queries(here.dropped(weights).astype(v.dtype), d_out_i), d_leaves

      def nothing():
        return jax.tree.map(jnp.zeros_like, (q_i, k_j, v_j.astype(jnp.float32), leaves))

      # What a tile adds, and not the sums, goes through the switch, which copies what it is given.
      d_q_i, *added = jax.lax.switch(kind, [nothing, lambda: tile(False), lambda: tile(True)])
      d_q, *sums = carry
      d_q_i = blocks.of_queries(d_q, i, 3) + d_q_i.astype(jnp.float32)
      d_q = jax.lax.dynamic_update_slice_in_dim(d_q, d_q_i, i * blocks.queries, 3)
      return d_q, *jax.tree.map(lambda total, x: total + x.astype(jnp.float32), sums, added)

    d_q, d_leaves = carry
    d_q, d_k_j, d_v_j, d_leaves = _visit(
      columns, j, met[:, j], fold, (d_q, *jax.tree.map(zeros, (k_j, v_j)), d_leaves)
    )
    return (d_q, d_leaves), (d_k_j, d_v_j)

  (d_q, d_leaves), sums = jax.lax.scan(line, jax.tree.map(zeros, (q, leaves)), jnp.arange(blocks.shape[1]))
  return d_q, *(jnp.moveaxis(x, 0, 2).reshape(like.shape) for x, like in zip(sums, (k, v))), d_leaves


def learned_gradients(
  inputs: Any, d_leaves: list[Array], log_sum_exp: Float[Array, 'B K G T'], inner: Float[Array, 'B K G T']
) -> PyTree:
  """The cotangents of (score, bias, sinks), of those of the leaves of the first two."""
  d_sinks = None
  if inputs.sinks is not None:
    # A sink is one more logit, whose value is zero.
    sinks = inputs.sinks.astype(jnp.float32).reshape(1, *log_sum_exp.shape[1:3], 1)
    d_sinks = -(jnp.exp(sinks - log_sum_exp) * inner).sum((0, 3)).reshape(-1).astype(inputs.sinks.dtype)
  leaves, rebuild = floating((inputs.score, inputs.bias))
  return *rebuild([d.astype(leaf.dtype) for d, leaf in zip(d_leaves, leaves)], rest=None), d_sinks


def zeros(x: Array) -> Float[Array, '...']:
  return jnp.zeros(x.shape, jnp.float32)


def floating(tree: PyTree) -> tuple[list[Array], Callable]:
  """The leaves that have gradients, and `rebuild(leaves) → tree`, with the others as they were or `rest`."""
  leaves, structure = jax.tree.flatten(tree)
  smooth = [jnp.issubdtype(x.dtype, jnp.floating) for x in leaves]

  def rebuild(given, **other):
    given = iter(given)
    return structure.unflatten(
      [next(given) if yes else other.get('rest', x) for x, yes in zip(leaves, smooth)]
    )

  return [x for x, yes in zip(leaves, smooth) if yes], rebuild


def over_keys(weights: Float[Array, 'B K G T S'], v: Float[Array, 'B K S C']) -> Float[Array, 'B K G T C']:
  """Σₛ weightₜₛ vₛ in float32; the queries of a group as rows of one matrix."""
  B, K, G, T, S = weights.shape
  out = jnp.einsum('BKNS,BKSC->BKNC', weights.reshape(B, K, G * T, S), v, preferred_element_type=jnp.float32)
  return out.reshape(B, K, G, T, -1)


def over_channels(x: Float[Array, 'B K G T C'], v: Float[Array, 'B K S C']) -> Float[Array, 'B K G T S']:
  """xₜ · vₛ in float32."""
  B, K, G, T, C = x.shape
  out = jnp.einsum('BKNC,BKSC->BKNS', x.reshape(B, K, G * T, C), v, preferred_element_type=jnp.float32)
  return out.reshape(B, K, G, T, -1)


def over_queries(weights: Float[Array, 'B K G T S'], x: Float[Array, 'B K G T C']) -> Float[Array, 'B K S C']:
  """Σₜ weightₜₛ xₜ in float32, over the queries of the group."""
  B, K, G, T, S = weights.shape
  return jnp.einsum(
    'BKNS,BKNC->BKSC',
    weights.reshape(B, K, G * T, S),
    x.reshape(B, K, G * T, -1),
    preferred_element_type=jnp.float32,
  )


class Softmax:
  """Sums that are rescaled whenever a greater logit comes; `carry` is (maximum, denominator, numerator)."""

  @staticmethod
  def start(inputs, shape, channels):
    numerator = jnp.zeros((*shape, channels), jnp.float32)
    if inputs.sinks is None:
      return jnp.full(shape, -jnp.inf), jnp.zeros(shape), numerator
    # As if the sink had come first, with a value of zero.
    sinks = inputs.sinks.astype(jnp.float32).reshape(1, *shape[1:3], 1)
    return jnp.broadcast_to(sinks, shape), jnp.ones(shape), numerator

  @staticmethod
  def add(carry, logits, seen, dropped, v, inputs):
    top, denominator, numerator = carry
    logits = jnp.where(seen, logits, -jnp.inf)
    new = jnp.maximum(top, logits.max(-1))
    # Where nothing has been seen the maximum is -inf, and any finite number does in its place.
    finite = jnp.where(new == -jnp.inf, 0, new)
    weights, shrink = jnp.exp(logits - finite[..., None]), jnp.exp(top - finite)
    return (
      new,
      denominator * shrink + weights.sum(-1),
      numerator * shrink[..., None] + over_keys(dropped(weights).astype(v.dtype), v),
    )

  @staticmethod
  def finish(carry):
    top, denominator, numerator = carry
    return numerator / jnp.where(denominator == 0, 1, denominator)[..., None], top + jnp.log(denominator)

  @staticmethod
  def weights(logits, seen, log_sum_exp, inputs):
    return jnp.where(seen, jnp.exp(logits - log_sum_exp[..., None]), 0)

  @staticmethod
  def gradient(weights, d_weights, inner):
    return weights * (d_weights - inner[..., None])


class Sigmoid:
  """Each key for itself: a sum, and nothing to rescale."""

  @staticmethod
  def start(inputs, shape, channels):
    return jnp.zeros((*shape, channels), jnp.float32)

  @staticmethod
  def add(numerator, logits, seen, dropped, v, inputs):
    weights = jnp.where(seen, jax.nn.sigmoid(logits + inputs.offset), 0)
    return numerator + over_keys(dropped(weights).astype(v.dtype), v)

  @staticmethod
  def finish(numerator):
    return numerator, jnp.zeros(numerator.shape[:-1])

  @staticmethod
  def weights(logits, seen, log_sum_exp, inputs):
    return jnp.where(seen, jax.nn.sigmoid(logits + inputs.offset), 0)

  @staticmethod
  def gradient(weights, d_weights, inner):
    return d_weights * weights * (1 - weights)


NORMALIZERS = {'softmax': Softmax, 'sigmoid': Sigmoid}
