"""Attention block by block: running sums over blocks of keys, and their gradients computed by hand.

Shared by the blockwise kernels. Wherever `inputs` is a parameter, it is a
`tfm.kernels.protocol.AttentionInputs` whose arrays are padded by `_block_plan.pad_to_blocks`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from tfm.kernels._block_plan import BlockGrid, VisitPlan, blocks_share_document
from tfm.kernels.protocol import CHECKPOINT_NAME
from tfm.layers.locations import Locations, same_document
from tfm.shapes import Array, Bool, Float, Int, PyTree


@dataclasses.dataclass(frozen=True)
class _Tile:
  """Query block i against key block j."""

  grid: BlockGrid
  inputs: Any
  i: Int[Array, '']
  j: Int[Array, '']

  def logits(self, q: Array, k: Array, score: Callable, bias: Callable | None) -> Float[Array, 'B K G T S']:
    return self.inputs.replace(score=score, bias=bias).logits(q, k, self.q_locations, self.k_locations)

  @property
  def q_locations(self) -> Locations:
    """Where the queries of the tile stand."""
    return Locations(*(self.grid.query_block(x, self.i, 1) for x in self.inputs.q_locations))

  @property
  def k_locations(self) -> Locations:
    """Where the keys of the tile stand."""
    return Locations(*(self.grid.key_block(x, self.j, 1) for x in self.inputs.k_locations))

  def visibility_mask(self, fully_visible: bool) -> Bool[Array, 'B 1 1 T S']:
    """Which pairs share a document and are shown by the mask, which is not evaluated if `fully_visible`."""
    inputs, grid = self.inputs, self.grid
    q, k = self.q_locations, self.k_locations
    visible = same_document(q.segments, k.segments)
    if not fully_visible:
      prefix = None if inputs.k_prefix is None else grid.key_block(inputs.k_prefix, self.j, 1)[:, None, :]
      visible &= inputs.mask.bind_prefix(prefix)(q.positions[:, :, None], k.positions[:, None, :])
    return visible[:, None, None]

  def apply_dropout(self, weights: Float[Array, 'B K G T S']) -> Float[Array, 'B K G T S']:
    """The weights, or their cotangents, after dropout."""
    if not self.inputs.uses_dropout:
      return weights
    # A tile's indices may lie in the padding, where the weights are zero.
    keep_mask = self.inputs.dropout_keep_mask(
      weights.shape[:3],
      self.i * self.grid.queries + jnp.arange(self.grid.queries),
      self.j * self.grid.keys + jnp.arange(self.grid.keys),
      self.grid.T,
    )
    return jnp.where(keep_mask, weights / (1 - self.inputs.dropout), 0)


def _fold_line(
  plan: VisitPlan, i: Int[Array, ''], share_document: Bool[Array, 'J'], fold: Callable, carry: PyTree
) -> PyTree:
  """Folds `fold(carry, j, kind)` over the blocks j that line i of a plan visits.

  `kind` is 0 for blocks without a common document, 2 if the mask shows every pair, and else 1.
  """

  def step(index, carry):
    j = jnp.asarray(plan.blocks)[index]
    kind = jnp.where(share_document[j], 1 + jnp.asarray(plan.fully_visible)[index], 0)
    return fold(carry, j, kind)

  starts = jnp.asarray(plan.starts)
  return jax.lax.fori_loop(starts[i], starts[i + 1], step, carry)


def any_share_document(grid: BlockGrid, inputs: Any) -> Bool[Array, 'I J']:
  """Whether any row of the batch may have a document in common between query block i and key block j."""
  return blocks_share_document(grid, inputs.q_segments, inputs.k_segments).any(0)


def initial_sums(
  grid: BlockGrid, q: Float[Array, 'B K G T C'], v: Float[Array, 'B K S C2'], inputs: Any
) -> PyTree:
  """The running sums of every query block before any key is added."""
  shape = (*q.shape[:3], grid.queries)
  block_sums = NORMALIZERS[inputs.normalizer].initial_sums(inputs, shape, v.shape[-1])
  return jax.tree.map(lambda x: jnp.broadcast_to(x[None], (grid.shape[0], *x.shape)), block_sums)


def add_keys(
  grid: BlockGrid,
  plan: VisitPlan,
  sums: PyTree,
  qkv: tuple[Float[Array, 'B K G T C'], Float[Array, 'B K S C'], Float[Array, 'B K S C2']],
  inputs: Any,
) -> PyTree:
  """The running sums after these keys; `plan` lists the key blocks that each query block visits."""
  q, k, v = qkv
  share_document, normalizer = any_share_document(grid, inputs), NORMALIZERS[inputs.normalizer]

  def add_to_query_block(block):
    i, sums_i = block
    q_i = grid.query_block(q, i, 3)

    def fold(sums_i, j, kind):
      def add_tile(fully_visible):
        tile = _Tile(grid, inputs, i, j)
        logits = tile.logits(q_i, grid.key_block(k, j, 2), inputs.score, inputs.bias)
        visible, v_j = tile.visibility_mask(fully_visible), grid.key_block(v, j, 2)
        return normalizer.add(sums_i, logits, visible, tile.apply_dropout, v_j, inputs)

      return jax.lax.switch(kind, [lambda: sums_i, lambda: add_tile(False), lambda: add_tile(True)])

    return _fold_line(plan, i, share_document[i], fold, sums_i)

  return jax.lax.map(add_to_query_block, (jnp.arange(grid.shape[0]), sums))


def finalize(sums: PyTree, inputs: Any) -> tuple[Float[Array, 'B K G T C2'], Float[Array, 'B K G T']]:
  """The output, and the log-sum-exp, which is zeros for a normalizer without one; both have the
  `CHECKPOINT_NAME`.
  """
  out, log_sum_exp = NORMALIZERS[inputs.normalizer].finalize(sums)
  out, log_sum_exp = jnp.moveaxis(out, 0, 3), jnp.moveaxis(log_sum_exp, 0, 3)
  out, log_sum_exp = (
    out.reshape(*out.shape[:3], -1, out.shape[-1]),
    log_sum_exp.reshape(*log_sum_exp.shape[:3], -1),
  )
  return checkpoint_name(out, CHECKPOINT_NAME), checkpoint_name(log_sum_exp, CHECKPOINT_NAME)


def compute_delta(out: Array, d_out: Array, d_log_sum_exp: Array) -> Float[Array, 'B K G T']:
  """Σ over keys of weight · d_weight, computed from the output (Dao et al. 2022, eq. 4).

  The cotangent of the log-sum-exp reaches the logits in the same way, so it is subtracted here.
  """
  return (out * d_out).sum(-1) - d_log_sum_exp


class OutputGradients(NamedTuple):
  """What the gradients of the inputs depend on at the output.

  Attributes:
    log_sum_exp: of the forward pass.
    delta: see `compute_delta`.
    d_out: the cotangent of the output.
  """

  log_sum_exp: Float[Array, 'B K G T']
  delta: Float[Array, 'B K G T']
  d_out: Float[Array, 'B K G T C2']


def input_gradients(
  grid: BlockGrid,
  plans: tuple[VisitPlan, VisitPlan],
  qkv: tuple[Float[Array, 'B K G T C'], Float[Array, 'B K S C'], Float[Array, 'B K S C2']],
  inputs: Any,
  at_output: OutputGradients,
) -> tuple[Array, Array, Array, list[Array]]:
  """The contributions of these keys to the cotangents of q, k, v and the leaves of (score, bias), in float32.

  One pass over the tiles recomputes their logits.

  Args:
    plans: of `plan_visits`: the second lists the query blocks that each key block visits.
  """
  (q, k, v), (log_sum_exp, delta, d_out) = qkv, at_output
  share_document, normalizer = any_share_document(grid, inputs), NORMALIZERS[inputs.normalizer]
  d_out = d_out.astype(v.dtype)
  leaves, rebuild = split_float_leaves((inputs.score, inputs.bias))

  def key_block_gradients(carry, j):
    k_j, v_j = grid.key_block(k, j, 2), grid.key_block(v, j, 2)

    def fold(carry, i, kind):
      q_i = grid.query_block(q, i, 3)

      def tile_gradients(fully_visible):
        tile, d_out_i = _Tile(grid, inputs, i, j), grid.query_block(d_out, i, 3)
        logits, vjp = jax.vjp(lambda q, k, leaves: tile.logits(q, k, *rebuild(leaves)), q_i, k_j, leaves)
        visible = tile.visibility_mask(fully_visible)
        weights = normalizer.weights(logits, visible, grid.query_block(log_sum_exp, i, 3), inputs)
        d_weights = tile.apply_dropout(dot_channels(d_out_i, v_j))
        d_logits = normalizer.logit_gradient(weights, d_weights, grid.query_block(delta, i, 3))
        d_q_i, d_k, d_leaves = vjp(d_logits)
        return d_q_i, d_k, sum_over_queries(tile.apply_dropout(weights).astype(v.dtype), d_out_i), d_leaves

      def zero_gradients():
        return jax.tree.map(jnp.zeros_like, (q_i, k_j, v_j.astype(jnp.float32), leaves))

      # `switch` copies its outputs, so it returns one tile's contribution and not the sums.
      d_q_i, *contribution = jax.lax.switch(
        kind, [zero_gradients, lambda: tile_gradients(False), lambda: tile_gradients(True)]
      )
      d_q, *sums = carry
      d_q_i = grid.query_block(d_q, i, 3) + d_q_i.astype(jnp.float32)
      d_q = jax.lax.dynamic_update_slice_in_dim(d_q, d_q_i, i * grid.queries, 3)
      return d_q, *jax.tree.map(lambda total, x: total + x.astype(jnp.float32), sums, contribution)

    d_q, d_leaves = carry
    d_q, d_k_j, d_v_j, d_leaves = _fold_line(
      plans[1], j, share_document[:, j], fold, (d_q, *jax.tree.map(float32_zeros, (k_j, v_j)), d_leaves)
    )
    return (d_q, d_leaves), (d_k_j, d_v_j)

  (d_q, d_leaves), d_blocks = jax.lax.scan(
    key_block_gradients, jax.tree.map(float32_zeros, (q, leaves)), jnp.arange(grid.shape[1])
  )
  d_k, d_v = (jnp.moveaxis(d, 0, 2).reshape(x.shape) for d, x in zip(d_blocks, (k, v)))
  return d_q, d_k, d_v, d_leaves


def sink_gradient(
  sinks: Float[Array, 'H'], log_sum_exp: Float[Array, 'B H T'], delta: Float[Array, 'B H T']
) -> Float[Array, 'H']:
  """The cotangent of the sinks: a sink is one more logit, with a value of zero."""
  weights = jnp.exp(sinks.astype(jnp.float32).reshape(1, -1, 1) - log_sum_exp)
  return -(weights * delta).sum((0, 2)).astype(sinks.dtype)


def learned_gradients(
  inputs: Any, d_leaves: list[Array], log_sum_exp: Float[Array, 'B K G T'], delta: Float[Array, 'B K G T']
) -> PyTree:
  """The cotangents of (score, bias, sinks), from those of the leaves of (score, bias)."""
  d_sinks = None
  if inputs.sinks is not None:
    of_heads = (x.reshape(len(x), -1, x.shape[-1]) for x in (log_sum_exp, delta))
    d_sinks = sink_gradient(inputs.sinks, *of_heads)
  leaves, rebuild = split_float_leaves((inputs.score, inputs.bias))
  d_leaves = [d.astype(leaf.dtype) for d, leaf in zip(d_leaves, leaves)]
  return *rebuild(d_leaves, other_leaves=None), d_sinks


def float32_zeros(x: Array) -> Float[Array, '...']:
  """Float32 zeros in the shape of x."""
  return jnp.zeros(x.shape, jnp.float32)


def split_float_leaves(tree: PyTree) -> tuple[list[Array], Callable]:
  """The floating-point leaves, which have gradients, and `rebuild(leaves) -> tree`.

  `rebuild` restores the other leaves, or replaces them by `other_leaves`.
  """
  leaves, structure = jax.tree.flatten(tree)
  is_float = [jnp.issubdtype(x.dtype, jnp.floating) for x in leaves]

  def rebuild(float_leaves, **replacement):
    float_leaves = iter(float_leaves)
    return structure.unflatten(
      [next(float_leaves) if f else replacement.get('other_leaves', x) for x, f in zip(leaves, is_float)]
    )

  return [x for x, f in zip(leaves, is_float) if f], rebuild


def sum_over_keys(
  weights: Float[Array, 'B K G T S'], v: Float[Array, 'B K S C']
) -> Float[Array, 'B K G T C']:
  """Σₛ weightₜₛ vₛ in float32; the queries of a group are rows of one matrix."""
  B, K, G, T, S = weights.shape
  out = jnp.einsum('BKNS,BKSC->BKNC', weights.reshape(B, K, G * T, S), v, preferred_element_type=jnp.float32)
  return out.reshape(B, K, G, T, -1)


def dot_channels(x: Float[Array, 'B K G T C'], v: Float[Array, 'B K S C']) -> Float[Array, 'B K G T S']:
  """xₜ · vₛ in float32."""
  B, K, G, T, C = x.shape
  out = jnp.einsum('BKNC,BKSC->BKNS', x.reshape(B, K, G * T, C), v, preferred_element_type=jnp.float32)
  return out.reshape(B, K, G, T, -1)


def sum_over_queries(
  weights: Float[Array, 'B K G T S'], x: Float[Array, 'B K G T C']
) -> Float[Array, 'B K S C']:
  """Σₜ weightₜₛ xₜ in float32, over the queries of the group."""
  B, K, G, T, S = weights.shape
  return jnp.einsum(
    'BKNS,BKNC->BKSC',
    weights.reshape(B, K, G * T, S),
    x.reshape(B, K, G * T, -1),
    preferred_element_type=jnp.float32,
  )


class OnlineSoftmax:
  """Softmax over blocks of keys; (maximum, denominator, numerator), rescaled as the maximum grows."""

  @staticmethod
  def initial_sums(inputs, shape, channels):
    numerator = jnp.zeros((*shape, channels), jnp.float32)
    if inputs.sinks is None:
      return jnp.full(shape, -jnp.inf), jnp.zeros(shape), numerator
    # The sink counts as a first key with a value of zero.
    sinks = inputs.sinks.astype(jnp.float32).reshape(1, *shape[1:3], 1)
    return jnp.broadcast_to(sinks, shape), jnp.ones(shape), numerator

  @staticmethod
  def add(sums, logits, visible, apply_dropout, v, inputs):
    maximum, denominator, numerator = sums
    logits = jnp.where(visible, logits, -jnp.inf)
    new_maximum = jnp.maximum(maximum, logits.max(-1))
    # Before the first visible key the maximum is -inf; any finite number avoids -inf - -inf.
    finite = jnp.where(new_maximum == -jnp.inf, 0, new_maximum)
    weights, rescale = jnp.exp(logits - finite[..., None]), jnp.exp(maximum - finite)
    return (
      new_maximum,
      denominator * rescale + weights.sum(-1),
      numerator * rescale[..., None] + sum_over_keys(apply_dropout(weights).astype(v.dtype), v),
    )

  @staticmethod
  def finalize(sums):
    maximum, denominator, numerator = sums
    out = numerator / jnp.where(denominator == 0, 1, denominator)[..., None]
    return out, maximum + jnp.log(denominator)

  @staticmethod
  def weights(logits, visible, log_sum_exp, inputs):
    return jnp.where(visible, jnp.exp(logits - log_sum_exp[..., None]), 0)

  @staticmethod
  def logit_gradient(weights, d_weights, delta):
    return weights * (d_weights - delta[..., None])


class Sigmoid:
  """Sigmoid weights, each key independent of the others; the sum is the numerator alone."""

  @staticmethod
  def initial_sums(inputs, shape, channels):
    return jnp.zeros((*shape, channels), jnp.float32)

  @staticmethod
  def add(numerator, logits, visible, apply_dropout, v, inputs):
    weights = jnp.where(visible, jax.nn.sigmoid(logits + inputs.sigmoid_offset), 0)
    return numerator + sum_over_keys(apply_dropout(weights).astype(v.dtype), v)

  @staticmethod
  def finalize(numerator):
    return numerator, jnp.zeros(numerator.shape[:-1])

  @staticmethod
  def weights(logits, visible, log_sum_exp, inputs):
    return jnp.where(visible, jax.nn.sigmoid(logits + inputs.sigmoid_offset), 0)

  @staticmethod
  def logit_gradient(weights, d_weights, delta):
    return d_weights * weights * (1 - weights)


NORMALIZERS = {'softmax': OnlineSoftmax, 'sigmoid': Sigmoid}
