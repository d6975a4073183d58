"""Pipeline parallelism: stages of layers on different devices, through which microbatches pass in turn.

All stages compute at once, each on another microbatch, and pass their outputs to the next stage (Huang et al.
2019, GPipe, §2.2). It is one program for all devices: the stages are an array axis sharded over the mesh axis
`stage`, the computation is vmapped over it, and passing on is a roll of that axis (Xu et al. 2021, GSPMD,
§3.3).
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from tfm.parallel.mesh_request import divisors
from tfm.parallel.microbatches import join_microbatches, split_into_microbatches
from tfm.parallel.sharding import mesh_axes_of, shard_count
from tfm.shapes import Array, PyTree


AXIS = 'stage'
# The default number of microbatches per stage, from which on the bubble is negligible (Huang et al. 2019,
# §2.3).
DEFAULT_MICROBATCHES_PER_STAGE = 4
# Primitives that select and cast the parameters of a layer; recomputing them is free.
PARAMETER_SELECTION_PRIMITIVES = frozenset(
  {
    'gather',
    'dynamic_slice',
    'slice',
    'squeeze',
    'reshape',
    'transpose',
    'broadcast_in_dim',
    'convert_element_type',
  }
)
BLOCK_INPUT = 'block_input'  # the name of what a layer gets, which every stage stores
SAVE_LAYER_INPUTS = jax.checkpoint_policies.save_only_these_names(BLOCK_INPUT)


@dataclasses.dataclass(frozen=True)
class Schedule:
  """The schedule of a pipeline: which stage computes which microbatch in which iteration.

  In iteration t stage s computes microbatch (t - s) mod M of round ⌊(t - s) / M⌋, and is idle if there is
  none. In round r it applies the layers of group r S + s. With one round the stages hold the layers in order;
  with more rounds a microbatch passes all stages several times, through smaller groups of layers, which
  shortens the bubble (Narayanan et al. 2021, §2.2, the interleaved schedule).

  Attributes:
    stages: S; repeats: R, the rounds; microbatches: M.
  """

  stages: int
  repeats: int
  microbatches: int

  @property
  def iterations(self) -> int:
    """M R + S - 1, of which each stage computes in M R."""
    return self.microbatches * self.repeats + self.stages - 1

  @property
  def bubble(self) -> float:
    """The fraction of iterations in which a stage is idle, (S - 1) / (M R + S - 1)."""
    return (self.stages - 1) / self.iterations

  def __str__(self):
    return (
      f'{self.stages} stages, {self.repeats} round{"s" * (self.repeats > 1)} '
      f'of {self.microbatches} microbatches, '
      f'bubble {self.bubble:.1%}'
    )

  def iteration_index(self) -> np.ndarray:
    """[S, R, M]: the iteration in which a stage computes a microbatch of a round."""
    s, r, m = np.ogrid[: self.stages, : self.repeats, : self.microbatches]
    return s + r * self.microbatches + m


def plan_schedule(stages: int, repeats: int, requested: int, rows: int, parts: int) -> Schedule:
  """The schedule of a batch of `rows` rows, which the mesh shards into `parts`.

  Args:
    requested: microbatches; 0 for the fewest that divide the rows and give each stage
      `DEFAULT_MICROBATCHES_PER_STAGE`, or the most possible.

  Raises:
    ValueError: if they do not divide the rows, or are fewer than the stages with several rounds: the first
      microbatch would return before the first stage is free.
  """
  valid = divisors(rows // math.gcd(rows, parts))
  least = stages if repeats > 1 else 1
  enough = [n for n in valid if n >= max(least, math.ceil(DEFAULT_MICROBATCHES_PER_STAGE * stages / repeats))]
  n = requested or (min(enough) if enough else max(valid))
  possible = [n for n in valid if n >= least]
  alternatives = ' or '.join(map(str, sorted(possible, key=lambda other: abs(math.log(other / n)))[:2]))
  if rows % (n * math.gcd(rows, parts)):
    raise ValueError(
      f'config.pipeline.microbatches={n} does not divide {rows} rows, of which {parts} are computed at once; '
      f'use {alternatives or "more rows"}'
    )
  if n < least:
    raise ValueError(
      f'config.pipeline.repeats={repeats} needs at least as many microbatches as config.mesh.stage={stages}, '
      f'and there are {n} of {rows} rows, of which {parts} are computed at once; '
      f'use {f"config.pipeline.microbatches={alternatives}" if alternatives else "more rows, or repeats=1"}'
    )
  return Schedule(stages, repeats, n)


def stage_count() -> int:
  """The stages of the current mesh if the current rules shard layers over them; else 1."""
  return shard_count(AXIS) if AXIS in mesh_axes_of('layers') else 1


def run_pipeline(
  layer: Callable[[PyTree, PyTree, PyTree, PyTree, Array, Array], tuple[PyTree, PyTree]],
  params: PyTree,
  x: PyTree,
  data: tuple[PyTree, PyTree],
  plan: Schedule,
  policy: Callable | None = None,
) -> tuple[PyTree, PyTree]:
  """Applies all layers to x.

  Args:
    layer: (its parameters, x, row_data, shared, layer index, microbatch index) → (x, auxiliary outputs), on
      one microbatch.
    params: of all layers, [L, …] each; S R divides L.
    x: an array [B, …], or a tree of such.
    data: (row_data, shared): arrays [B, …] that belong to the rows of x, and arrays that are the same for
      all rows and layers.
    policy: the checkpoint policy of `layer`, if it has one.

  Returns:
    (x, the auxiliary outputs as arrays [M, L, …], by microbatch and layer).
  """
  S, R, M = plan.stages, plan.repeats, plan.microbatches
  row_data, shared = data
  L = jax.tree.leaves(params)[0].shape[0]
  K = L // (S * R)
  params = jax.tree.map(lambda p: group_by_stage(p, S, R), params)
  row_data = jax.tree.map(lambda rows: replicate_over_stages(split_into_microbatches(rows, M), S), row_data)
  shared = jax.tree.map(lambda value: replicate_over_stages(value, S), shared)
  # The first stage holds the microbatches that wait for their next round; the copies of other stages are
  # unused.
  waiting = jax.tree.map(lambda x: replicate_over_stages(split_into_microbatches(x, M), S), x)

  def stage(params, x, row_data, shared, s, t):
    r, m = jnp.clip((t - s) // M, 0, R - 1), (t - s) % M
    microbatch = jax.tree.map(lambda rows: rows[m], row_data)
    stage_params = jax.tree.map(lambda p: p[0] if R == 1 else p[r], params)
    layer_indices = (r * S + s) * K + jnp.arange(K)

    def apply_layer(x, params_and_index):
      layer_params, index = params_and_index
      return layer(layer_params, x, microbatch, shared, index, m)

    return jax.lax.scan(apply_layer, x, (stage_params, layer_indices))

  stage = jax.checkpoint(stage, policy=functools.partial(checkpoint_policy, policy), prevent_cse=False)
  all_stages = jax.vmap(stage, in_axes=(0, 0, 0, 0, 0, None), spmd_axis_name=AXIS)
  stage_indices = jnp.arange(S)

  def of_first_stage(x, other):
    """x in the first stage, the other one in the others."""
    return jnp.where(stage_indices.reshape(S, *[1] * (x.ndim - 1)) == 0, x, other)

  def iteration(carry, t):
    arriving, waiting = carry
    first = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, t % M, 1, keepdims=False), waiting)
    x = jax.tree.map(lambda *pair: shard_over_stages(of_first_stage(*pair)), first, arriving)
    x, aux = all_stages(params, x, row_data, shared, stage_indices, t)
    arriving = jax.tree.map(lambda x: shard_over_stages(jnp.roll(x, 1, 0)), x)
    # The output of the last stage waits at the first stage for its next round, or for the end.
    m = (t - (S - 1)) % M

    def store(waiting, arriving):
      unchanged = jax.lax.dynamic_index_in_dim(waiting, m, 1, keepdims=False)
      returned = jnp.where(t < S - 1, unchanged, arriving)
      return shard_over_stages(jax.lax.dynamic_update_index_in_dim(waiting, returned, m, 1))

    return (arriving, jax.tree.map(store, waiting, arriving)), aux

  # Until its first microbatch arrives, a stage computes on the first rows: finite numbers, whose results are
  # unused.
  start = jax.tree.map(lambda x: x[:, 0], waiting), waiting
  (_, finished), aux = jax.lax.scan(iteration, start, jnp.arange(plan.iterations))
  x = jax.tree.map(
    lambda x: join_microbatches(of_first_stage(x, 0).sum(0, dtype=x.dtype)), finished
  )  # [M, B/M, …]; a sum over stages, because the stage axis is sharded

  def by_layer(value):  # [iterations, S, K, …]
    value = value[plan.iteration_index(), np.arange(S)[:, None, None]]  # [S, R, M, K, …]
    return value.transpose(2, 1, 0, 3, *range(4, value.ndim)).reshape(M, L, *value.shape[4:])

  return x, jax.tree.map(by_layer, aux)


def checkpoint_policy(policy: Callable | None, primitive, *args, **fields) -> bool:
  """The checkpoint policy of an iteration: saves layer inputs and what the layers' policy saves.

  It saves no selected or cast parameters, of which there would be one copy per iteration.
  """
  if primitive.name in PARAMETER_SELECTION_PRIMITIVES:
    return False
  return policy is None or policy(primitive, *args, **fields) or SAVE_LAYER_INPUTS(primitive, *args, **fields)


def shard_over_stages(x: Array) -> Array:
  """x with its first axis sharded over the stages."""
  return jax.lax.with_sharding_constraint(
    x, PartitionSpec(AXIS, *[PartitionSpec.UNCONSTRAINED] * (x.ndim - 1))
  )


def replicate_over_stages(x: Array, stages: int) -> Array:
  """[…] → [S, …]: one copy per stage, so that gradients are summed over stages once, at the end."""
  return shard_over_stages(jnp.broadcast_to(x[None], (stages, *x.shape)))


def group_by_stage(p: Array, stages: int, repeats: int) -> Array:
  """[L, …] → [S, R, K, …], K layers for each stage and round.

  Parameters are stored on the stages in the order of the layers. With several rounds the stages exchange them
  once per step, each sending and receiving R groups, and likewise their gradients.
  """
  K = p.shape[0] // (stages * repeats)
  if repeats > 1:
    p = jax.shard_map(
      lambda own: _exchange_groups(own, stages, repeats),
      in_specs=PartitionSpec(AXIS),
      out_specs=PartitionSpec(AXIS),
      axis_names={AXIS},
      check_vma=False,
    )(p)
  return shard_over_stages(p.reshape(stages, repeats, K, *p.shape[1:]))


def _exchange_groups(p: Array, S: int, R: int) -> Array:
  """Exchanges groups of layers: stored groups d R + i of stage d → computed groups r S + s of stage s."""
  groups = p.reshape(R, -1, *p.shape[1:])
  d, common = np.arange(S), math.gcd(S, R)
  out = jnp.zeros_like(groups)
  for j in range(R):
    # The place differs between stages d and d + S / gcd, so that they do not send to the same stage.
    place = (j + d * common // S) % R
    group = d * R + place
    to = group % S
    outgoing = groups[jnp.asarray(place)[jax.lax.axis_index(AXIS)]]
    incoming = (
      outgoing if (to == d).all() else jax.lax.ppermute(outgoing, AXIS, [*zip(d.tolist(), to.tolist())])
    )
    at = np.empty(S, np.int32)
    at[to] = group // S
    out = out.at[jnp.asarray(at)[jax.lax.axis_index(AXIS)]].set(incoming)
  return out.reshape(p.shape)
