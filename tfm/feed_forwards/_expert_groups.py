"""Experts without a capacity: rows sorted by expert, and products group by group."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from tfm.layers.float32_gradients import reduction_dtype
from tfm.layers.grouped_matmul import invert_permutation, multiply_groups, permute
from tfm.parallel.pipeline_parallelism import stage_count
from tfm.parallel.sharding import dividing_axes, mesh_axes_per_dimension, shard_count
from tfm.shapes import Array, Float, Int


Projections = Mapping[str, Mapping[str, Array]]  # name → kernel [E I O] and perhaps bias [E O]


def mix_groups(
  activate: Callable[[Callable[[str], Array]], Array],
  x: Float[Array, 'B T D'],
  choices: Int[Array, 'B T k'],
  weights: Float[Array, 'B T k'],
  projections: Projections,
  names: Mapping[str, tuple[str, str]],
) -> Float[Array, 'B T D']:
  """Σ_k weight · chosen expert(x); a choice of E is none.

  On a mesh each device computes its own experts and its own part of their hidden layers (`shard_map`). It
  gathers x, choices and weights over the axes that shard both rows and experts, and the sums of all devices
  are scattered back over them; over other axes of experts and hidden layers the sums are reduced. Kernels
  are gathered only over the axes of `embed`, and over those of `mlp` that shard rows, as everywhere.

  Args:
    activate: `project` → hidden layer, as `MLP.activate`.
    projections: of 'up', maybe 'gate', and 'down'; names: the logical axes of their kernels.
  """
  (B, T, _), E = x.shape, projections['down']['kernel'].shape[0]
  axes = MeshAxes.of(B, T)
  rows = PartitionSpec(axes.batch or None, axes.length or None)
  experts = PartitionSpec(axes.expert or None)
  run = functools.partial(_mix_own_groups, activate, axes, names)
  # `shard_map` adds up the gradients of a kernel over devices in the type of the kernel.
  projections = {
    name: p | dict(kernel=p['kernel'].astype(reduction_dtype.value or p['kernel'].dtype))
    for name, p in projections.items()
  }
  # Of a pipeline, too: the stages are a `vmap`, of which each device computes its own.
  if axes.is_sharded or stage_count() > 1:
    specs = {
      name: {
        part: PartitionSpec(*experts, *(getattr(axes, axis) or None for axis in names[name][-p.ndim + 1 :]))
        for part, p in projection.items()
      }
      for name, projection in projections.items()
    }
    # A first axis of one part per device: the sum over it reduces once, and its gradient does not.
    parts = PartitionSpec(axes.reduced or None, *rows)
    run = jax.shard_map(run, in_specs=(rows, rows, rows, experts, specs), out_specs=parts, check_vma=False)
  return run(x, choices, weights, jnp.arange(E), projections).sum(0)


@dataclasses.dataclass(frozen=True)
class MeshAxes:
  """The mesh axes, of more than one device, that shard each dimension.

  Attributes:
    batch, length: of x; expert, embed, mlp: of the kernels.
  """

  batch: tuple[str, ...]
  length: tuple[str, ...]
  expert: tuple[str, ...]
  embed: tuple[str, ...]
  mlp: tuple[str, ...]

  @classmethod
  def of(cls, rows: int, length: int) -> 'MeshAxes':
    """Those of the current mesh and rules; a number of rows or tokens that they do not divide is not sharded,
    as in initialization."""
    batch = dividing_axes('batch', rows)
    kernel = (
      tuple(axis for axis in axes if shard_count(axis) > 1)
      for axes in mesh_axes_per_dimension('expert', 'embed', 'mlp')
    )
    return cls(batch, dividing_axes('length', length, batch), *kernel)

  @property
  def is_sharded(self) -> bool:
    return any(dataclasses.astuple(self))

  @property
  def rows(self) -> tuple[str, ...]:
    return self.batch + self.length

  @property
  def exchanged(self) -> tuple[str, ...]:
    """Those over which rows travel to the experts."""
    return tuple(axis for axis in self.expert if axis in self.rows)

  @property
  def reduced(self) -> tuple[str, ...]:
    """Those over which every device has the rows, and a part of the sum."""
    return tuple(axis for axis in self.expert + self.mlp if axis not in self.rows)

  def gathered(self, name: str) -> tuple[str, ...]:
    """Those over which a device gathers the kernels' dimension `name`."""
    return self.embed if name == 'embed' else tuple(axis for axis in self.mlp if axis in self.rows)


def _mix_own_groups(activate, axes, names, x, choices, weights, own_experts, projections):
  """[1 B T D]: this device's part of the sum, for its rows."""
  B, T, D = x.shape
  k, E = choices.shape[2], len(own_experts)

  def exchange(x):
    x = x.reshape(B * T, x.shape[2])
    return jax.lax.all_gather(x, axes.exchanged, tiled=True) if axes.exchanged else x

  x, choices, weights = exchange(x), exchange(choices) - own_experts[0], exchange(weights)
  is_own = (0 <= choices) & (choices < E)
  groups = jnp.where(is_own, choices, E).reshape(-1)
  order = jnp.argsort(groups, stable=True)
  sizes = (groups[:, None] == jnp.arange(E)[None]).sum(0)
  owners = groups[order].clip(max=E - 1)

  def project(name, x):
    p, (i, o) = projections[name], names[name]
    # Plans count the rows of the other devices' experts as filling.
    with jax.named_scope(f'useful:1:{shard_count(axes.expert)}'):
      y = multiply_groups(x, p['kernel'], sizes, (axes.gathered(i), axes.gathered(o)))
    if 'bias' in p:
      bias = p['bias']
      if axes.gathered(o):
        bias = jax.lax.all_gather(bias, axes.gathered(o), axis=1, tiled=True)
      if o == 'embed':  # the parts of a hidden layer add it once
        bias = bias / shard_count(tuple(axis for axis in axes.mlp if axis in axes.reduced))
      y = (y + bias[owners]).astype(x.dtype)
    return y

  x = permute(jnp.repeat(x, k, axis=0), order)
  y = project('down', activate(lambda name: project(name, x)))
  y = permute(y, invert_permutation(order)).reshape(-1, k, D)
  y = (y.astype(jnp.float32) * jnp.where(is_own, weights, 0)[..., None]).sum(1).astype(x.dtype)
  if axes.exchanged:
    y = jax.lax.psum_scatter(y, axes.exchanged, scatter_dimension=0, tiled=True)
  return y.reshape(1, B, T, D)
