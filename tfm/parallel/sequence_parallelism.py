"""Rows sharded along their length: by which mesh axis, and linear recurrences across the shards."""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from tfm.parallel import pipeline_parallelism
from tfm.shapes import Array, Int, PyTree


def sequence_shards() -> tuple[tuple[str, ...], int]:
  """(mesh axes of more than one device that shard rows under the current rules, number of shards)."""
  shape = jax.sharding.get_abstract_mesh().shape
  [axes] = nn.logical_to_mesh_axes(('length',))
  axes = tuple(axis for axis in ((axes,) if isinstance(axes, str) else axes or ()) if shape.get(axis, 1) > 1)
  return axes, math.prod(shape[axis] for axis in axes)


def manual_axes(*axes: str) -> set[str]:
  """The manual axes of a `shard_map` over sequence shards: their axes, and the stage axis of a pipeline."""
  return {*axes, pipeline_parallelism.AXIS} if pipeline_parallelism.stage_count() > 1 else {*axes}


def scan_over_sequence_shards(
  scan: Callable,
  state: PyTree,
  rows: PyTree,
  shared: Any = None,
  unit: Callable = jnp.ones_like,
  act: Callable = jnp.multiply,
) -> tuple[PyTree, PyTree]:
  """Runs `scan(state, rows, shared) → (state, outputs)` over rows of which every device holds one shard.

  The final state of a shard must be affine in its initial state, h → A h + b. Each device scans its shard
  from a zero state, which gives b, and the derivative with respect to the state gives A. The devices
  all-gather A and b (n states, no tokens), compute the state before their shard from them, and scan again
  from it. If the mesh does not shard the rows, or not evenly, the compiler partitions the scan.

  Args:
    rows: arrays [B, T, …]; shared: arrays that are the same for all tokens, such as parameters.
    unit: state → the tangent at which A h equals A: ones if A multiplies elementwise, the identity if it is a
      matrix.
    act: (A, h) → A h.
  """
  axes, n = sequence_shards()
  if not axes or jax.tree.leaves(rows)[0].shape[1] % n:
    return scan(state, rows, shared)

  def scan_shard(device: Int[Array, '1'], state, rows, shared):
    zero_state = jax.tree.map(jnp.zeros_like, state)
    affine_map = jax.jvp(
      lambda state: scan(state, rows, shared)[0], (zero_state,), (jax.tree.map(unit, state),)
    )

    def compose(state, affine_map):
      offset, factor = affine_map
      return jax.tree.map(lambda a, h, b: act(a, h) + b, factor, state, offset), state

    last, initial_states = jax.lax.scan(compose, state, jax.lax.all_gather(affine_map, axes))
    _, outputs = scan(jax.tree.map(lambda x: x[device[0]], initial_states), rows, shared)
    return last, outputs

  sharded, replicated = PartitionSpec(None, axes), PartitionSpec()
  return jax.shard_map(
    scan_shard,
    in_specs=(PartitionSpec(axes), replicated, sharded, replicated),
    out_specs=(replicated, sharded),
    axis_names=manual_axes(*axes),
    check_vma=False,
  )(jnp.arange(n), state, rows, shared)
