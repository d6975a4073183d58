"""Attention kernels that the compiler cannot partition: a `shard_map` over rows and heads."""

from collections.abc import Callable

import flax.linen as nn
import jax
from jax.sharding import PartitionSpec

from tfm.parallel.sharding import shard_count
from tfm.shapes import Array, Float, PyTree


Axes = tuple[str, ...] | str | None


def uneven_heads_reason(heads: int, kv_heads: int) -> str | None:
  """Why the current mesh and rules cannot shard query and key heads together; None if they can."""
  parts = shard_count(batch_and_head_axes()[1])
  if heads % parts or kv_heads > 1 and kv_heads % parts:
    return (
      f'the mesh splits its {heads} heads into {parts} shards, which does not divide its {kv_heads} key heads'
    )
  return None


def attend_per_device(
  attention: Callable,
  q: Float[Array, 'B T H C'],
  k: Float[Array, 'B S K C'],
  v: Float[Array, 'B S K C2'],
  tokens: PyTree,
  of_heads: PyTree = None,
) -> PyTree:
  """Runs `attention(q, k, v, tokens, of_heads)` on each device's rows and heads, or directly outside a mesh.

  Rows that the mesh does not divide, as in initialization, are not sharded; nor is a single key head.

  Args:
    tokens: arrays [B T] or [B S], such as segments; of_heads: arrays [H …], such as sinks.

  Returns:
    the arrays [B T H …] that `attention` returns.
  """
  if jax.sharding.get_abstract_mesh().empty:
    return attention(q, k, v, tokens, of_heads)
  batch, heads = batch_and_head_axes()
  batch = batch if q.shape[0] % shard_count(batch) == 0 else None
  of_q, rows = PartitionSpec(batch, None, heads, None), PartitionSpec(batch, None)
  of_k = PartitionSpec(batch, None, None if k.shape[2] == 1 else heads, None)
  specs = of_q, of_k, of_k, rows, PartitionSpec(heads)
  run = jax.shard_map(attention, in_specs=specs, out_specs=of_q, check_vma=False)
  return run(q, k, v, tokens, of_heads)


def batch_and_head_axes() -> tuple[Axes, Axes]:
  """The mesh axes that shard rows and heads under the current rules."""
  return tuple(nn.logical_to_mesh_axes(('batch', 'heads')))
