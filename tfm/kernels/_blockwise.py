"""Attention block by block: running sums over blocks of keys, and their gradients computed by hand.

Shared by the blockwise kernels. Wherever `inputs` is a parameter, it is a
`tfm.kernels.protocol.AttentionInputs` whose arrays are padded by `_block_plan.pad_to_blocks`. Heads come
after tokens in whole arrays, as projections give them, and before tokens in blocks, as products need them: a
block is small, and its copy stays in a cache.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from tfm.kernels._block_plan import BlockGrid, VisitPlan, compare_documents
from tfm.kernels._normalizers import NORMALIZERS
from tfm.kernels.protocol import CHECKPOINT_NAME, group_queries, ungroup_queries
from tfm.layers.dot_product import scaled_dot
from tfm.layers.locations import Locations, same_document
from tfm.shapes import Array, Bool, Float, Int, PyTree


Qkv = tuple[Float[Array, 'B T H C'], Float[Array, 'B S K C'], Float[Array, 'B S K C2']]


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
    return Locations(*(self.grid.query_block(x, self.i) for x in self.inputs.q_locations))

  @property
  def k_locations(self) -> Locations:
    """Where the keys of the tile stand."""
    return Locations(*(self.grid.key_block(x, self.j) for x in self.inputs.k_locations))

  def visibility_mask(self, fully_visible: bool) -> Bool[Array, '...']:
    """Which pairs [B 1 1 T S] are of one document and shown by the mask; true alone if all are visible."""
    if fully_visible:
      return jnp.array(True)
    inputs, q, k = self.inputs, self.q_locations, self.k_locations
    prefix = None if inputs.k_prefix is None else self.grid.key_block(inputs.k_prefix, self.j)[:, None, :]
    visible = inputs.mask.bind_prefix(prefix)(q.positions[:, :, None], k.positions[:, None, :])
    return (visible & same_document(q.segments, k.segments))[:, None, None]

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
  plan: VisitPlan, i: Int[Array, ''], documents: Int[Array, 'J'], fold: Callable, carry: PyTree
) -> PyTree:
  """Folds `fold(carry, j, kind)` over the blocks j that line i of a plan visits.

  `kind` is 0 for blocks without a common document, 2 if every pair is visible, and else 1; `documents` is
  line i of `relate_documents`.
  """

  def step(index, carry):
    j = jnp.asarray(plan.blocks)[index]
    return fold(carry, j, jnp.minimum(documents[j], 1 + jnp.asarray(plan.fully_visible)[index]))

  starts = jnp.asarray(plan.starts)
  return jax.lax.fori_loop(starts[i], starts[i + 1], step, carry)


def relate_documents(grid: BlockGrid, inputs: Any) -> Int[Array, 'I J']:
  """0 if query block i and key block j have no document in common in any row of the batch, 2 if each row has
  one document alone in them, and else 1.
  """
  are_shared, are_one = compare_documents(grid, inputs.q_segments, inputs.k_segments)
  # One reduction, and so one collective where devices share the batch.
  any_shared, any_unlike = jnp.stack([are_shared, ~are_one]).any(1)
  return any_shared.astype(jnp.int32) + ~any_unlike


def block_sums(
  grid: BlockGrid, q: Float[Array, 'B T H C'], v: Float[Array, 'B S K C2'], inputs: Any
) -> PyTree:
  """The running sums of a query block before any key is added."""
  (B, _, H, _), (_, _, K, C2) = q.shape, v.shape
  return NORMALIZERS[inputs.normalizer].initial_sums(inputs, (B, K, H // K, grid.queries), C2)


def initial_sums(
  grid: BlockGrid, q: Float[Array, 'B T H C'], v: Float[Array, 'B S K C2'], inputs: Any
) -> PyTree:
  """The running sums of every query block before any key is added."""
  sums = block_sums(grid, q, v, inputs)
  return jax.tree.map(lambda x: jnp.broadcast_to(x[None], (grid.shape[0], *x.shape)), sums)


def add_keys(grid: BlockGrid, plan: VisitPlan, sums: PyTree, qkv: Qkv, inputs: Any) -> PyTree:
  """The running sums after these keys; `plan` lists the key blocks that each query block visits."""
  add_to_block = block_adder(grid, plan, qkv, inputs)
  return jax.lax.map(lambda block: add_to_block(*block), (jnp.arange(grid.shape[0]), sums))


def block_adder(
  grid: BlockGrid, plan: VisitPlan, qkv: Qkv, inputs: Any
) -> Callable[[Int[Array, ''], PyTree], PyTree]:
  """`(i, running sums of query block i) → its sums after the keys that it visits`."""
  q, k, v = qkv
  documents, normalizer = relate_documents(grid, inputs), NORMALIZERS[inputs.normalizer]

  def add_to_block(i, sums_i):
    q_i = group_queries(grid.query_block(q, i), k.shape[2])

    def fold(sums_i, j, kind):
      def add_tile(fully_visible):
        tile, k_j, v_j = _Tile(grid, inputs, i, j), *(grid.key_block(x, j).swapaxes(1, 2) for x in (k, v))
        logits = tile.logits(q_i, k_j, inputs.score, inputs.bias)
        return normalizer.add(
          sums_i, logits, tile.visibility_mask(fully_visible), tile.apply_dropout, v_j, inputs
        )

      return jax.lax.switch(kind, [lambda: sums_i, lambda: add_tile(False), lambda: add_tile(True)])

    return _fold_line(plan, i, documents[i], fold, sums_i)

  return add_to_block


def attend_all(
  grid: BlockGrid, plan: VisitPlan, qkv: Qkv, inputs: Any
) -> tuple[Float[Array, 'B T H C2'], Float[Array, 'B K G T']]:
  """`finalize(add_keys(initial_sums))`, one block of queries after the other: no sums are stored."""
  q, k, v = qkv
  add_to_block = block_adder(grid, plan, qkv, inputs)

  def attend_block(i, so_far):
    sums = add_to_block(i, block_sums(grid, q, v, inputs))
    out, log_sum_exp = NORMALIZERS[inputs.normalizer].finalize(sums)
    return (
      grid.put_query_block(so_far[0], ungroup_queries(out), i),
      grid.put_query_block(so_far[1], log_sum_exp, i, axis=3),
    )

  (B, T, H, _), K = q.shape, k.shape[2]
  zeros = jnp.zeros((B, T, H, v.shape[-1]), jnp.float32), jnp.zeros((B, K, H // K, T), jnp.float32)
  return name_residuals(*jax.lax.fori_loop(0, grid.shape[0], attend_block, zeros))


def finalize(sums: PyTree, inputs: Any) -> tuple[Float[Array, 'B T H C2'], Float[Array, 'B K G T']]:
  """The output, and the log-sum-exp, which is zeros for a normalizer without one; both have the
  `CHECKPOINT_NAME`.
  """
  blocks, log_sum_exp = NORMALIZERS[inputs.normalizer].finalize(sums)
  out = jnp.moveaxis(jax.vmap(ungroup_queries)(blocks), 0, 1)
  log_sum_exp = jnp.moveaxis(log_sum_exp, 0, 3)
  return name_residuals(
    out.reshape(len(out), -1, *out.shape[3:]), log_sum_exp.reshape(*log_sum_exp.shape[:3], -1)
  )


def name_residuals(*arrays: Array) -> tuple[Array, ...]:
  """The arrays under the `CHECKPOINT_NAME`."""
  return tuple(checkpoint_name(x, CHECKPOINT_NAME) for x in arrays)


def compute_delta(
  out: Float[Array, '*T C'], d_out: Float[Array, '*T C'], d_log_sum_exp: Float[Array, '*T']
) -> Float[Array, '*T']:
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
  d_out: Float[Array, 'B T H C2']

  @classmethod
  def of(
    cls, out: Float[Array, 'B T H C2'], log_sum_exp: Float[Array, 'B K G T'], cotangents: tuple[Array, Array]
  ) -> 'OutputGradients':
    """Those of an output and its log-sum-exp with their cotangents."""
    d_out, d_log_sum_exp = cotangents
    delta = compute_delta(out, d_out, ungroup_queries(d_log_sum_exp))
    return cls(log_sum_exp, group_queries(delta, log_sum_exp.shape[1]), d_out)


def input_gradients(
  grid: BlockGrid, plans: tuple[VisitPlan, VisitPlan], qkv: Qkv, inputs: Any, at_output: OutputGradients
) -> tuple[Array, Array, Array, list[Array]]:
  """The contributions of these keys to the cotangents of q, k, v and the leaves of (score, bias), in float32.

  One pass over the tiles recomputes their logits. The sums of a block of keys and values have channels before
  tokens, as `sum_over_queries` gives them.

  Args:
    plans: of `plan_visits`: the second lists the query blocks that each key block visits.
  """
  (q, k, v), (log_sum_exp, delta, d_out) = qkv, at_output
  documents, normalizer = relate_documents(grid, inputs), NORMALIZERS[inputs.normalizer]
  d_out = d_out.astype(v.dtype)
  leaves, rebuild = split_float_leaves((inputs.score, inputs.bias))

  def add_key_block(j, carry):
    k_j, v_j = (grid.key_block(x, j).swapaxes(1, 2) for x in (k, v))
    d_k_j, d_v_j = (float32_zeros(x.swapaxes(2, 3)) for x in (k_j, v_j))

    def fold(carry, i, kind):
      q_i = group_queries(grid.query_block(q, i), k.shape[2])

      def tile_gradients(fully_visible):
        tile, d_out_i = _Tile(grid, inputs, i, j), group_queries(grid.query_block(d_out, i), k.shape[2])

        def compute_logits(q, k, leaves):
          score, bias = rebuild(leaves)
          score = score if inputs.scale is None else functools.partial(_scaled_dot, inputs.scale)
          return tile.logits(q, k.swapaxes(2, 3), score, bias)

        logits, vjp = jax.vjp(compute_logits, q_i, k_j.swapaxes(2, 3), leaves)
        visible = tile.visibility_mask(fully_visible)
        weights = normalizer.weights(logits, visible, grid.query_block(log_sum_exp, i, 3), inputs)
        d_weights = tile.apply_dropout(dot_channels(d_out_i, v_j))
        d_logits = normalizer.logit_gradient(weights, d_weights, grid.query_block(delta, i, 3))
        d_q_i, d_k, d_leaves = vjp(d_logits)
        return d_q_i, d_k, sum_over_queries(tile.apply_dropout(weights).astype(v.dtype), d_out_i), d_leaves

      def zero_gradients():
        return jax.tree.map(jnp.zeros_like, (q_i, d_k_j.astype(k.dtype), d_v_j, leaves))

      # `switch` copies its outputs, so it returns one tile's contribution and not the sums.
      d_q_i, *contribution = jax.lax.switch(
        kind, [zero_gradients, lambda: tile_gradients(False), lambda: tile_gradients(True)]
      )
      d_q, *sums = carry
      d_q_i = grid.query_block(d_q, i) + ungroup_queries(d_q_i.astype(jnp.float32))
      return grid.put_query_block(d_q, d_q_i, i), *jax.tree.map(
        lambda total, x: total + x.astype(jnp.float32), sums, contribution
      )

    d_q, d_k, d_v, d_leaves = carry
    d_q, d_k_j, d_v_j, d_leaves = _fold_line(
      plans[1], j, documents[:, j], fold, (d_q, d_k_j, d_v_j, d_leaves)
    )
    d_k, d_v = (grid.put_key_block(d, jnp.moveaxis(d_j, 3, 1), j) for d, d_j in ((d_k, d_k_j), (d_v, d_v_j)))
    return d_q, d_k, d_v, d_leaves

  return jax.lax.fori_loop(0, grid.shape[1], add_key_block, jax.tree.map(float32_zeros, (q, k, v, leaves)))


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


def dot_channels(x: Float[Array, 'B K G T C'], v: Float[Array, 'B K S C']) -> Float[Array, 'B K G T S']:
  """xₜ · vₛ in float32."""
  B, K, G, T, C = x.shape
  out = jnp.einsum('BKNC,BKSC->BKNS', x.reshape(B, K, G * T, C), v, preferred_element_type=jnp.float32)
  return out.reshape(B, K, G, T, -1)


def sum_over_queries(
  weights: Float[Array, 'B K G T S'], x: Float[Array, 'B K G T C']
) -> Float[Array, 'B K C S']:
  """Σₜ weightₜₛ xₜ in float32, over the queries of the group."""
  B, K, G, T, S = weights.shape
  # The compiler would transpose the weights, or have them read by columns; x is smaller.
  transposed = jax.lax.optimization_barrier(x.reshape(B, K, G * T, -1).swapaxes(2, 3))
  return jnp.einsum(
    'BKCN,BKNS->BKCS', transposed, weights.reshape(B, K, G * T, S), preferred_element_type=jnp.float32
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scaled_dot(
  scale: float, q: Float[Array, 'B K G T C'], k: Float[Array, 'B K S C']
) -> Float[Array, 'B K G T S']:
  """`scaled_dot`, with a gradient by `sum_over_queries`."""
  return scaled_dot(q, k, scale)


def _scaled_dot_forward(scale, q, k):
  return scaled_dot(q, k, scale), (q, k)


def _scaled_dot_backward(scale, residuals, d_logits):
  q, k = residuals
  _, vjp_q = jax.vjp(lambda q: scaled_dot(q, k, scale), q)
  d_k = sum_over_queries(d_logits, q * jnp.asarray(scale, q.dtype)).swapaxes(2, 3)
  return *vjp_q(d_logits), d_k.astype(k.dtype)


_scaled_dot.defvjp(_scaled_dot_forward, _scaled_dot_backward)
