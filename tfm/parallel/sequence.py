"""Rows that a mesh cuts along their length: by which axis, and a state that is handed from piece to piece."""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from tfm.parallel import pipeline
from tfm.shapes import Array, Int, PyTree


def sequence_shards() -> tuple[tuple[str, ...], int]:
  """The mesh axes, of more than one device, by which the rules in force cut rows, and into how many pieces."""
  shape = jax.sharding.get_abstract_mesh().shape
  [axes] = nn.logical_to_mesh_axes(('length',))
  axes = tuple(axis for axis in ((axes,) if isinstance(axes, str) else axes or ()) if shape.get(axis, 1) > 1)
  return axes, math.prod(shape[axis] for axis in axes)


def manual_axes(axis: str) -> set[str]:
  """The mesh axes of a `shard_map` over pieces of rows: theirs, and that of stages, which may be mapped over around it."""
  return {axis, pipeline.AXIS} if pipeline.stage_count() > 1 else {axis}


def scan_over_sequence_shards(
  scan: Callable,
  state: PyTree,
  rows: PyTree,
  shared: Any = None,
  unit: Callable = jnp.ones_like,
  act: Callable = jnp.multiply,
) -> tuple[PyTree, PyTree]:
  """`scan(state, rows, shared) → (state, outputs)` of whole rows, of which each device of a mesh has a piece.

  What comes out of a piece must be linear in what went in, h → A h + b. So each device reads its piece from an empty state,
  which gives b, and the derivative by the state gives A; these are sent around, n states and no tokens, and from them each knows
  the state before its piece, from which it reads it again. Rows that no axis cuts, or several, or none evenly, are the
  compiler's.

  Args:
    rows: arrays [B, T, …]; shared: what is the same for all tokens, such as parameters.
    unit: state → that of which A h is A: ones where A is a factor of each number, an identity where it is a matrix.
    act: (A, h) → A h.
  """
  axes, n = sequence_shards()
  if len(axes) != 1 or jax.tree.leaves(rows)[0].shape[1] % n:
    return scan(state, rows, shared)
  [axis] = axes

  def read(device: Int[Array, '1'], state, rows, shared):
    empty = jax.tree.map(jnp.zeros_like, state)
    own = jax.jvp(lambda state: scan(state, rows, shared)[0], (empty,), (jax.tree.map(unit, state),))

    def after(state, one):
      added, factor = one
      return jax.tree.map(lambda a, h, b: act(a, h) + b, factor, state, added), state

    last, before = jax.lax.scan(after, state, jax.lax.all_gather(own, axis))
    _, outputs = scan(jax.tree.map(lambda x: x[device[0]], before), rows, shared)
    return last, outputs

  along, whole = PartitionSpec(None, axis), PartitionSpec()
  return jax.shard_map(
    read,
    in_specs=(PartitionSpec(axis), whole, along, whole),
    out_specs=(whole, along),
    axis_names=manual_axes(axis),
    check_vma=False,
  )(jnp.arange(n), state, rows, shared)
