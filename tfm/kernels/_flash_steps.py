"""The steps of a ring by the kernels of `flash`, whose outputs are merged by their log-sum-exps."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from tfm.kernels._block_plan import BlockGrid, VisitPlan
from tfm.kernels._blockwise import OutputGradients
from tfm.kernels._tile_order import Lines, Visits
from tfm.kernels._tiles import Operands, Tiles
from tfm.kernels.protocol import CHECKPOINT_NAME, OF_TOKENS
from tfm.layers.pallas import pad_channels
from tfm.shapes import Array, Float


Qkv = tuple[Float[Array, 'B K G T C'], Float[Array, 'B K S C'], Float[Array, 'B K S C2']]


@dataclasses.dataclass(frozen=True)
class FlashSteps:
  """What `_blockwise` has, under the same signatures, for blocks as long for queries as for keys.

  The sums are the output of the keys so far and its log-sum-exp; a sink is the log-sum-exp before any key.
  """

  interpret: bool

  def initial_sums(
    self, grid: BlockGrid, q: Float[Array, 'B K G T C'], v: Float[Array, 'B K S C2'], inputs: Any
  ):
    """The sums before any key is added."""
    shape = q.shape[:4]
    sums = jnp.zeros((*shape, v.shape[-1]), jnp.float32), jnp.full(shape, -jnp.inf, jnp.float32)
    if inputs.sinks is None:
      return sums
    sinks = inputs.sinks.astype(jnp.float32).reshape(1, *shape[1:3], 1)
    return sums[0], jnp.broadcast_to(sinks, shape)

  def add_keys(self, grid: BlockGrid, plan: VisitPlan, sums, qkv: Qkv, inputs: Any):
    """The sums after these keys; `plan` lists the key blocks that each query block visits."""
    out, log_sum_exp = sums
    visits, operands = make_visits(grid, plan, inputs, by_key=False), make_operands(qkv, inputs)
    added = self.tiles(grid, inputs).forward(visits, operands, jnp.float32)
    added_out, added_log_sum_exp = added[0].reshape(*out.shape[:4], -1), added[1].reshape(log_sum_exp.shape)
    total = jnp.logaddexp(log_sum_exp, added_log_sum_exp)
    # Before the first visible key it is -inf; any finite number avoids -inf - -inf.
    finite = jnp.where(total == -jnp.inf, 0, total)
    old, new = (jnp.exp(x - finite)[..., None] for x in (log_sum_exp, added_log_sum_exp))
    return out * old + added_out[..., : out.shape[-1]] * new, total

  def finalize(self, sums, inputs: Any) -> tuple[Float[Array, 'B K G T C2'], Float[Array, 'B K G T']]:
    """The output and the log-sum-exp; both have the `CHECKPOINT_NAME`."""
    out, log_sum_exp = sums
    return checkpoint_name(out, CHECKPOINT_NAME), checkpoint_name(log_sum_exp, CHECKPOINT_NAME)

  def input_gradients(
    self,
    grid: BlockGrid,
    plans: tuple[VisitPlan, VisitPlan],
    qkv: Qkv,
    inputs: Any,
    at_output: OutputGradients,
  ) -> tuple[Array, Array, Array, list[Array]]:
    """The contributions of these keys to the cotangents of q, k and v, in float32."""
    B, K, G, T, _ = qkv[0].shape
    log_sum_exp, delta, d_out = (
      x.reshape(B, K * G, T, -1)
      for x in (at_output.log_sum_exp, at_output.delta, pad_channels(at_output.d_out.astype(qkv[2].dtype)))
    )
    operands = make_operands(qkv, inputs)._replace(d_out=d_out, log_sum_exp=log_sum_exp, delta=delta)
    tiles = self.tiles(grid, inputs)
    d_q = tiles.q_gradient(make_visits(grid, plans[0], inputs, by_key=False), operands)
    d_keys = tiles.kv_gradients(make_visits(grid, plans[1], inputs, by_key=True), operands)
    gradients = d_q.reshape(B, K, G, T, -1), *d_keys
    return *(d[..., : x.shape[-1]] for d, x in zip(gradients, qkv)), []

  def tiles(self, grid: BlockGrid, inputs: Any) -> Tiles:
    """The kernels for these inputs."""
    return Tiles(inputs.mask, inputs.scale, inputs.soft_cap, grid.keys, self.interpret)


def make_operands(qkv: Qkv, inputs: Any) -> Operands:
  """The operands of the kernels from arrays that are padded to whole blocks."""
  q, k, v = map(pad_channels, qkv)
  B, K, G, T, C = q.shape
  return Operands.of(q.reshape(B, K * G, T, C), k, v, {name: getattr(inputs, name) for name in OF_TOKENS})


def make_visits(grid: BlockGrid, plan: VisitPlan, inputs: Any, by_key: bool) -> Visits:
  """The visits of a plan whose lines are blocks of queries, or of keys; the plan may be traced."""
  starts, blocks, fully_visible = map(jnp.asarray, plan)
  lines = jnp.searchsorted(starts[1:], jnp.arange(len(blocks)), side='right').astype(jnp.int32)
  lines = jnp.minimum(lines, len(starts) - 2)  # a plan is padded with visits that no line makes
  queries, keys = (blocks, lines) if by_key else (lines, blocks)
  tiles = Lines(starts, queries, keys, jnp.zeros_like(keys), fully_visible)
  return tiles.visits(grid, inputs.q_segments, inputs.k_segments)
