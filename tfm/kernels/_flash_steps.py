"""The steps of a ring by the kernels of `flash`, whose outputs are merged by their log-sum-exps."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from tfm.kernels._block_plan import BlockGrid, VisitPlan
from tfm.kernels._blockwise import OutputGradients, Qkv, name_residuals
from tfm.kernels._tile_order import Lines, Visits
from tfm.kernels._tiles import Operands, Tiles
from tfm.kernels.protocol import OF_TOKENS
from tfm.layers.pallas import pad_channels
from tfm.shapes import Array, Float


@dataclasses.dataclass(frozen=True)
class FlashSteps:
  """What `_blockwise` has, under the same signatures, for blocks as long for queries as for keys.

  The sums are the output of the keys so far and its log-sum-exp; a sink is the log-sum-exp before any key.
  """

  interpret: bool

  def initial_sums(
    self, grid: BlockGrid, q: Float[Array, 'B T H C'], v: Float[Array, 'B S K C2'], inputs: Any
  ) -> tuple[Float[Array, 'B H T C2'], Float[Array, 'B H T']]:
    """The sums before any key is added."""
    B, T, H, _ = q.shape
    sums = jnp.zeros((B, H, T, v.shape[-1]), jnp.float32), jnp.full((B, H, T), -jnp.inf, jnp.float32)
    if inputs.sinks is None:
      return sums
    return sums[0], jnp.broadcast_to(inputs.sinks.astype(jnp.float32)[:, None], (B, H, T))

  def add_keys(self, grid: BlockGrid, plan: VisitPlan, sums, qkv: Qkv, inputs: Any):
    """The sums after these keys; `plan` lists the key blocks that each query block visits."""
    out, log_sum_exp = sums
    visits, operands = make_visits(grid, plan, inputs, by_key=False), make_operands(qkv, inputs)
    added_out, added_log_sum_exp = self.tiles(grid, inputs).forward(visits, operands, jnp.float32)
    added_log_sum_exp = added_log_sum_exp.reshape(log_sum_exp.shape)
    total = jnp.logaddexp(log_sum_exp, added_log_sum_exp)
    # Before the first visible key it is -inf; any finite number avoids -inf - -inf.
    finite = jnp.where(total == -jnp.inf, 0, total)
    old, new = (jnp.exp(x - finite)[..., None] for x in (log_sum_exp, added_log_sum_exp))
    return out * old + added_out[..., : out.shape[-1]] * new, total

  def finalize(self, sums, inputs: Any) -> tuple[Float[Array, 'B T H C2'], Float[Array, 'B 1 H T']]:
    """The output and the log-sum-exp, under the `CHECKPOINT_NAME`."""
    out, log_sum_exp = sums
    return name_residuals(out.swapaxes(1, 2), log_sum_exp[:, None])

  def input_gradients(
    self,
    grid: BlockGrid,
    plans: tuple[VisitPlan, VisitPlan],
    qkv: Qkv,
    inputs: Any,
    at_output: OutputGradients,
  ) -> tuple[Array, Array, Array, list[Array]]:
    """The contributions of these keys to the cotangents of q, k and v, in float32."""
    B, T, H, _ = qkv[0].shape
    log_sum_exp, delta = (x.reshape(B, H, T, 1) for x in (at_output.log_sum_exp, at_output.delta))
    d_out = pad_channels(at_output.d_out.astype(qkv[2].dtype).swapaxes(1, 2))
    operands = make_operands(qkv, inputs)._replace(d_out=d_out, log_sum_exp=log_sum_exp, delta=delta)
    tiles = self.tiles(grid, inputs)
    d_q = tiles.q_gradient(make_visits(grid, plans[0], inputs, by_key=False), operands)
    d_keys = tiles.kv_gradients(make_visits(grid, plans[1], inputs, by_key=True), operands)
    return *(d.swapaxes(1, 2)[..., : x.shape[-1]] for d, x in zip((d_q, *d_keys), qkv)), []

  def tiles(self, grid: BlockGrid, inputs: Any) -> Tiles:
    """The kernels for these inputs."""
    return Tiles(inputs.mask, inputs.scale, inputs.soft_cap, grid.keys, self.interpret)


def make_operands(qkv: Qkv, inputs: Any) -> Operands:
  """The operands of the kernels from arrays that are padded to whole blocks."""
  q, k, v = (pad_channels(x.swapaxes(1, 2)) for x in qkv)
  return Operands.of(q, k, v, {name: getattr(inputs, name) for name in OF_TOKENS})


def make_visits(grid: BlockGrid, plan: VisitPlan, inputs: Any, by_key: bool) -> Visits:
  """The visits of a plan whose lines are blocks of queries, or of keys; the plan may be traced."""
  starts, blocks, fully_visible = map(jnp.asarray, plan)
  lines = jnp.searchsorted(starts[1:], jnp.arange(len(blocks)), side='right').astype(jnp.int32)
  lines = jnp.minimum(lines, len(starts) - 2)  # a plan is padded with visits that no line makes
  queries, keys = (blocks, lines) if by_key else (lines, blocks)
  tiles = Lines(starts, queries, keys, jnp.zeros_like(keys), fully_visible)
  return tiles.visits(grid, inputs.q_segments, inputs.k_segments)
