"""Logical axes: parameters and activations name what an axis means; rules say which mesh axis carries it.

A misspelt axis would replicate silently, so the names are closed: `AXES` is all there are.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tfm.parallel import mesh as meshes
from tfm.parallel.mesh_request import DivisibilityConstraint, MeshRequest
from tfm.shapes import Array, PyTree


AXES = {
  'batch': 'sequences',
  'length': 'tokens of a sequence',
  'embed': 'model width',
  'heads': 'query heads',
  'kv_heads': 'key/value heads',
  'kv': 'channels of one head',
  'mlp': 'feed-forward width',
  'vocab': 'vocabulary',
  'table': 'rows of a small table',
  'classes': 'classes of a head',
  'pixels': 'pixels of a patch',
  'expert': 'experts of a mixture',
  'rank': 'a compressed width between two projections',
  'state': 'what a recurrent state holds for each channel',
  'taps': 'taps of a convolution',
  'gates': 'gates of a recurrent cell',
  'layers': 'stacked layers',
}

DATA_AXES = 'batch', 'length'  # what data are cut along

Rules = tuple[tuple[str, tuple[str, ...]], ...]


class Parameter(nn.LogicallyPartitioned):
  """A parameter's value with its logical axes and the name of its initializer."""

  initializer: str = struct.field(default='', pytree_node=False)


def validate_axes(names: tuple[str, ...], rank: int) -> None:
  """Raises ValueError unless `names` are known logical axes, one for each of `rank` dimensions."""
  for name in names:
    if name not in AXES:
      raise ValueError(f'{name!r} is not a logical axis; known: {", ".join(AXES)}')
  if len(names) != rank:
    raise ValueError(f'{len(names)} logical axes {names} name an array of rank {rank}; give one each')


def shard(x: Array, *names: str | None) -> Array:
  """Constrains an activation to the sharding that the current rules give its logical axes; None is uncut.

  Outside a mesh it checks the names and returns `x`.

  Raises:
    ValueError: for an unknown name or a wrong number of names.
  """
  unsharded = names.count(None)
  validate_axes(tuple(name for name in names if name is not None), x.ndim - unsharded)
  return nn.with_logical_constraint(x, names)


def mesh_axes_of(name: str) -> tuple[str, ...]:
  """The mesh axes that cut a logical axis by the rules in force, of those that the mesh in force has."""
  axes, shape = dict(nn.get_logical_axis_rules()).get(name) or (), jax.sharding.get_abstract_mesh().shape
  return tuple(axis for axis in ((axes,) if isinstance(axes, str) else axes) if axis in shape)


def mesh_axes_per_dimension(*names: str) -> list[tuple[str, ...]]:
  """The mesh axes that cut each axis of one array by the rules in force; where two ask for the same, the first rule has it."""
  spec = nn.logical_to_mesh_axes(names) or [None] * len(names)
  return [(axes,) if isinstance(axes, str) else tuple(axes or ()) for axes in spec]


def shard_count(axes: tuple[str, ...] | str | None) -> int:
  """Into how many parts mesh axes cut, in the mesh in force."""
  shape = jax.sharding.get_abstract_mesh().shape
  return math.prod(shape.get(axis, 1) for axis in ((axes,) if isinstance(axes, str) else axes or ()))


def shard_over_mesh_axes(x: Array, *axes: tuple[str, ...]) -> Array:
  """Constrains an activation to mesh axes themselves, for each of its own, where they follow from several rules; outside a
  mesh it returns `x`."""
  if jax.sharding.get_abstract_mesh().empty:
    return x
  axes = (tuple(axis for axis in names if shard_count(axis) > 1) for names in axes)
  return jax.lax.with_sharding_constraint(x, PartitionSpec(*(names or None for names in axes)))


def with_logical_axes(initializer: Callable, names: tuple[str, ...]) -> Callable[..., Parameter]:
  """Wraps an initializer so that the parameter it makes carries its logical axes."""

  def init(key, shape, dtype):
    validate_axes(names, len(shape))
    return Parameter(initializer(key, shape, dtype), names, initializer=str(initializer))

  return init


def parse_rules(rules: Mapping[str, str]) -> Rules:
  """`{'batch': 'data fsdp', 'length': ''}` → `(('batch', ('data', 'fsdp')), ('length', ()))`.

  The order counts: where two axes of one array ask for the same mesh axis, the first rule has it.
  """
  for name in rules:
    if name not in AXES:
      raise ValueError(f'rules.{name} names no logical axis; known: {", ".join(AXES)}')
  return tuple((name, tuple(rules[name].split())) for name in AXES if name in rules)


def unbox_reshaped(tree: PyTree, params: PyTree) -> PyTree:
  """Takes the box off every leaf of `tree` that has its parameter's axes but not its shape.

  Those are adafactor's factored moments; unboxed, they are replicated, which is right for their size.
  """

  def is_box(x):
    return isinstance(x, Parameter)

  shapes = {(box.names, box.value.shape) for box in jax.tree.leaves(params, is_leaf=is_box)}
  return jax.tree.map(
    lambda x: x.value if is_box(x) and (x.names, x.value.shape) not in shapes else x, tree, is_leaf=is_box
  )


def named_shardings(boxed: PyTree, mesh: Mesh, rules: Rules) -> PyTree:
  """The `NamedSharding` of every leaf of a boxed (abstract) tree under the rules.

  Leaves without logical axes (step counters, keys) are replicated.
  """
  return nn.unbox(nn.logical_to_mesh_sharding(nn.get_partition_spec(boxed), mesh, rules))


def mesh_constraints(boxed: PyTree, rules: Rules) -> list[DivisibilityConstraint]:
  """What a mesh must divide of the parameters, each named."""
  constraints = []
  for path, box in jax.tree_util.tree_leaves_with_path(boxed, is_leaf=lambda x: isinstance(x, Parameter)):
    if isinstance(box, Parameter):
      where = '/'.join(str(getattr(k, 'key', k)) for k in path)
      for size, name, axes in zip(box.value.shape, box.names, nn.logical_to_mesh_axes(box.names, rules)):
        axes = (axes,) if isinstance(axes, str) else tuple(axes or ())
        if axes:
          constraints.append(
            DivisibilityConstraint(
              size, axes, functools.partial(_indivisible_message, where, size, name, axes)
            )
          )
  return constraints


def _indivisible_message(where: str, size: int, name: str, axes: tuple[str, ...], parts: int) -> str:
  axis_names = ' × '.join(f'mesh.{axis}' for axis in axes)
  return (
    f'{axis_names} = {parts} cuts {name!r} of the parameter {where} into {parts} parts, but it has {size}; '
    f"change that size or {axes[-1]!r} of the mesh, or keep it whole with rules.{name}=''"
  )


def _idle_axis_message(axis: str, parts: int) -> str:
  why = (
    'no layers are stacked, as config.model.scan=True does'
    if axis == 'stage'
    else 'give it something in the rules'
  )
  return f'mesh.{axis}={parts} cuts nothing, so that {parts} devices would each do the same: {why}'


def validate_divisibility(
  boxed: PyTree, mesh: Mesh, rules: Rules, extra_constraints: Sequence[DivisibilityConstraint] = ()
) -> None:
  """Refuses a mesh that does not divide some parameter, or cuts nothing along an axis.

  Args:
    more: what else must be divided, by a mesh that is proposed instead.

  Raises:
    ValueError: naming the parameter, both numbers and the nearest mesh that works.
  """
  sizes, constraints = dict(mesh.shape), mesh_constraints(boxed, rules)
  used_axes = {axis for constraint in constraints for axis in constraint.axes} | {
    axis for name, axes in rules if name in DATA_AXES for axis in axes
  }
  idle = [
    DivisibilityConstraint(1, (axis,), functools.partial(_idle_axis_message, axis))
    for axis in meshes.AXES
    if axis in sizes and axis not in used_axes
  ]
  request = MeshRequest(sizes, mesh.size, (*constraints, *idle, *extra_constraints))
  try:
    for constraint in request.constraints:
      constraint.validate(sizes)
  except ValueError as error:
    raise ValueError(f'{error}; {request.describe_nearest()}') from None


def batch_sharding(mesh: Mesh, rules: Rules) -> NamedSharding:
  """Rows of a batch over the mesh axes that carry `batch`."""
  return NamedSharding(mesh, PartitionSpec(dict(rules).get('batch') or None))


def replicated(mesh: Mesh) -> NamedSharding:
  """One whole copy on every device."""
  return NamedSharding(mesh, PartitionSpec())


def context(mesh: Mesh, rules: Rules) -> Any:
  """`with context(mesh, rules):` makes `shard` mean something."""
  return _Context(mesh, rules)


class _Context:
  def __init__(self, mesh: Mesh, rules: Rules):
    self.entered = jax.set_mesh(mesh), nn.logical_axis_rules(rules)

  def __enter__(self):
    for manager in self.entered:
      manager.__enter__()

  def __exit__(self, *error):
    for manager in reversed(self.entered):
      manager.__exit__(*error)
