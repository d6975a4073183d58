"""Pipeline parallelism: layers in stages, each on devices of its own, through which parts of a batch travel one after another.

All stages compute at once, each on another microbatch, and what they made moves on by one stage (Huang et al. 2019, GPipe, §2.2).
It is one program for all devices: the stages are an axis of arrays, cut over the mesh axis `stage`, over which the computation is
mapped, and to move on is to roll that axis (Xu et al. 2021, GSPMD, §3.3).
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from tfm.parallel.mesh_request import divisors
from tfm.parallel.microbatches import join_microbatches, split_into_microbatches
from tfm.parallel.sharding import mesh_axes_of, shard_count
from tfm.shapes import Array, PyTree


AXIS = 'stage'
# Microbatches for each stage, where nobody says how many: from there on the bubble hardly counts (Huang et al. 2019, §2.3).
DEFAULT_MICROBATCHES_PER_STAGE = 4
# By which parameters become those that a layer reads; no work to do again.
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
LAYER_INPUT = 'input of a layer'
SAVE_LAYER_INPUTS = jax.checkpoint_policies.save_only_these_names(LAYER_INPUT)


@dataclasses.dataclass(frozen=True)
class Schedule:
  """Which stage computes what when: in iteration t stage s is at piece of work t - s, the microbatch t - s mod M in round
  ⌊(t - s) / M⌋, if there is one, and idle otherwise.

  In round r it goes through the layers of group r S + s, so that with one round the stages are the layers in order, and with more
  a microbatch goes round several times (Narayanan et al. 2021, §2.2, the interleaved schedule), in thinner slices of layers, which
  makes the time shorter in which the first have begun and the last have not.

  Attributes:
    stages: S; repeats: R, the rounds; microbatches: M.
  """

  stages: int
  repeats: int
  microbatches: int

  @property
  def iterations(self) -> int:
    """M R + S - 1, of which each stage works in M R."""
    return self.microbatches * self.repeats + self.stages - 1

  @property
  def bubble(self) -> float:
    """The share of its time in which a stage is idle, (S - 1) / (M R + S - 1)."""
    return (self.stages - 1) / self.iterations

  def __str__(self):
    return (
      f'{self.stages} stages, {self.repeats} round{"s" * (self.repeats > 1)} of {self.microbatches} microbatches, '
      f'bubble {self.bubble:.1%}'
    )

  def iteration_index(self) -> np.ndarray:
    """[S, R, M]: the iteration in which a stage has a microbatch in a round."""
    s, r, m = np.ogrid[: self.stages, : self.repeats, : self.microbatches]
    return s + r * self.microbatches + m


def plan_schedule(stages: int, repeats: int, requested: int, rows: int, parts: int) -> Schedule:
  """The schedule of so many rows, which a mesh cuts into `parts`.

  Args:
    asked: microbatches; 0: the fewest that divide the rows and are `USUAL` for each stage, or as many as there can be.

  Raises:
    ValueError: if they do not divide the rows, or are fewer than the stages where they go round: the first would come back
      before the stage is there that it goes to.
  """
  fit = divisors(rows // math.gcd(rows, parts))
  least = stages if repeats > 1 else 1
  enough = [n for n in fit if n >= max(least, math.ceil(DEFAULT_MICROBATCHES_PER_STAGE * stages / repeats))]
  n = requested or (min(enough) if enough else max(fit))
  possible = [n for n in fit if n >= least]
  would = ' or '.join(map(str, sorted(possible, key=lambda other: abs(math.log(other / n)))[:2]))
  if rows % (n * math.gcd(rows, parts)):
    raise ValueError(
      f'config.pipeline.microbatches={n} does not divide {rows} rows, of which {parts} go at once; '
      f'{would or "more rows"} would do'
    )
  if n < least:
    raise ValueError(
      f'config.pipeline.repeats={repeats} wants at least as many microbatches as mesh.stage={stages}, and '
      f'there are {n} of {rows} rows, of which {parts} go at once; '
      f'{f"config.pipeline.microbatches={would}" if would else "more rows, or repeats=1,"} would do'
    )
  return Schedule(stages, repeats, n)


def stage_count() -> int:
  """The stages of the mesh in force, if the rules in force cut layers over them."""
  return shard_count(AXIS) if AXIS in mesh_axes_of('layers') else 1


def run_pipeline(
  layer: Callable[[PyTree, Array, PyTree, PyTree, Array, Array], tuple[Array, PyTree]],
  params: PyTree,
  x: Array,
  row_data: PyTree,
  shared: PyTree,
  plan: Schedule,
  policy: Callable | None = None,
) -> tuple[Array, PyTree]:
  """x through all layers, and what they tell, [M, L, …] of each number: by microbatch, then by layer.

  Args:
    layer: (its parameters, x, beside, common, its number, the microbatch's number) → (x, what it tells), on one microbatch.
    params: of all layers, [L, …] each; S R divides L.
    x: [B, …]; beside: arrays [B, …] that belong to the rows of x and travel with them.
    common: arrays that are the same for all rows and layers.
    keep: the checkpoint policy of `layer`, if it has one.
  """
  S, R, M = plan.stages, plan.repeats, plan.microbatches
  L = jax.tree.leaves(params)[0].shape[0]
  K = L // (S * R)
  params = jax.tree.map(lambda p: group_by_stage(p, S, R), params)
  row_data = jax.tree.map(lambda rows: replicate_over_stages(split_into_microbatches(rows, M), S), row_data)
  shared = jax.tree.map(lambda value: replicate_over_stages(value, S), shared)
  # What waits to begin a round stands with the first stage; that of the others is of no account.
  waiting = replicate_over_stages(split_into_microbatches(x, M), S)

  def stage(params, x, row_data, shared, s, t):
    r, m = jnp.clip((t - s) // M, 0, R - 1), (t - s) % M
    here = jax.tree.map(lambda rows: rows[m], row_data)
    mine = jax.tree.map(lambda p: p[0] if R == 1 else p[r], params)
    numbers = (r * S + s) * K + jnp.arange(K)

    def through(x, now):
      return layer(now[0], checkpoint_name(x, LAYER_INPUT), here, shared, now[1], m)

    return jax.lax.scan(through, x, (mine, numbers))

  stage = jax.checkpoint(stage, policy=functools.partial(checkpoint_policy, policy), prevent_cse=False)
  every = jax.vmap(stage, in_axes=(0, 0, 0, 0, 0, None), spmd_axis_name=AXIS)
  numbers = jnp.arange(S)

  def iteration(carry, t):
    arriving, waiting = carry
    first = jax.lax.dynamic_index_in_dim(waiting, t % M, 1, keepdims=False)
    x = shard_over_stages(jnp.where(numbers.reshape(S, *[1] * (first.ndim - 1)) == 0, first, arriving))
    x, aux = every(params, x, row_data, shared, numbers, t)
    arriving = shard_over_stages(jnp.roll(x, 1, 0))
    # What leaves the last stage waits at the first for its next round, or for all to have ended.
    m = (t - (S - 1)) % M
    there = jax.lax.dynamic_index_in_dim(waiting, m, 1, keepdims=False)
    back = jnp.where(t < S - 1, there, arriving)
    return (arriving, shard_over_stages(jax.lax.dynamic_update_index_in_dim(waiting, back, m, 1))), aux

  # Until its first work comes a stage goes through the first rows: numbers as real as others, so that none is infinite.
  (_, ended), aux = jax.lax.scan(iteration, (waiting[:, 0], waiting), jnp.arange(plan.iterations))
  own = numbers.reshape(S, *[1] * (ended.ndim - 1)) == 0
  x = join_microbatches(
    jnp.where(own, ended, 0).sum(0, dtype=ended.dtype)
  )  # [M, B/M, …]: a sum, as it is what all stages can add up

  def by_layer(value):  # [iterations, S, K, …]
    value = value[plan.iteration_index(), np.arange(S)[:, None, None]]  # [S, R, M, K, …]
    return value.transpose(2, 1, 0, 3, *range(4, value.ndim)).reshape(M, L, *value.shape[4:])

  return x, jax.tree.map(by_layer, aux)


def checkpoint_policy(policy: Callable | None, primitive, *args, **fields) -> bool:
  """The policy of an iteration: what goes into each layer is kept for the backward pass, and of a layer what it keeps itself, but no
  parameters, picked or cast, of which there would be a copy for each iteration.
  """
  if primitive.name in PARAMETER_SELECTION_PRIMITIVES:
    return False
  return policy is None or policy(primitive, *args, **fields) or SAVE_LAYER_INPUTS(primitive, *args, **fields)


def shard_over_stages(x: Array) -> Array:
  """x with its first axis cut over the stages."""
  return jax.lax.with_sharding_constraint(
    x, PartitionSpec(AXIS, *[PartitionSpec.UNCONSTRAINED] * (x.ndim - 1))
  )


def replicate_over_stages(x: Array, stages: int) -> Array:
  """[…] → [S, …]: every stage's own, so that gradients are added up over stages once, at the end."""
  return shard_over_stages(jnp.broadcast_to(x[None], (stages, *x.shape)))


def group_by_stage(p: Array, stages: int, repeats: int) -> Array:
  """[L, …] → [S, R, K, …], K layers for each stage and round.

  Parameters lie on the stages in the order of the layers. If they go round several times, the stages change them once, each sending
  and getting R groups, and their gradients go back likewise.
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
  """Of one stage's R groups, one after another, those that it works on: groups d R + i of stage d → groups r S + s of stage s."""
  groups = p.reshape(R, -1, *p.shape[1:])
  d, common = np.arange(S), math.gcd(S, R)
  out = jnp.zeros_like(groups)
  for j in range(R):
    # Stages d and d + S / gcd would send to the same one, were they not at another place.
    place = (j + d * common // S) % R
    group = d * R + place
    to = group % S
    sent = groups[jnp.asarray(place)[jax.lax.axis_index(AXIS)]]
    got = sent if (to == d).all() else jax.lax.ppermute(sent, AXIS, [*zip(d.tolist(), to.tolist())])
    at = np.empty(S, np.int32)
    at[to] = group // S
    out = out.at[jnp.asarray(at)[jax.lax.axis_index(AXIS)]].set(got)
  return out.reshape(p.shape)
