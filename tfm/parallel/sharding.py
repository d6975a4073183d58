"""Logical axes: parameters and activations name what an axis means; rules map it to mesh axes.

A misspelt axis would be replicated silently, so only the names in `AXES` are valid.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tfm.errors import require
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
  'rank': 'bottleneck width between two projections',
  'state': 'entries of a recurrent state per channel',
  'taps': 'taps of a convolution',
  'gates': 'gates of a recurrent cell',
  'layers': 'stacked layers',
}

DATA_AXES = 'batch', 'length'  # the axes that shard data

Rules = tuple[tuple[str, tuple[str, ...]], ...]


class Parameter(nn.LogicallyPartitioned):
  """A parameter's value with its logical axes, the name of its initializer, and its input axes, from the end:
  those of a kernel that are contracted with the input. Stacked layers add axes in front.
  """

  initializer: str = struct.field(default='', pytree_node=False)
  inputs: tuple[int, ...] = struct.field(default=(), pytree_node=False)


def validate_axes(names: tuple[str, ...], rank: int) -> None:
  """Raises ValueError unless `names` are known logical axes, one for each of `rank` dimensions."""
  for name in names:
    if name not in AXES:
      raise ValueError(f'{name!r} is not a logical axis; use one of {", ".join(AXES)}')
  if len(names) != rank:
    raise ValueError(f'{len(names)} logical axes {names} for an array of rank {rank}; give one per dimension')


def shard(x: Array, *names: str | None) -> Array:
  """Constrains an activation to the sharding of its logical axes by the current rules; None: unsharded.

  Outside a mesh it validates the names and returns `x`.

  Raises:
    ValueError: for an unknown name or a wrong number of names.
  """
  unsharded = names.count(None)
  validate_axes(tuple(name for name in names if name is not None), x.ndim - unsharded)
  return nn.with_logical_constraint(x, names)


def mesh_axes_of(name: str) -> tuple[str, ...]:
  """The axes of the current mesh that shard a logical axis under the current rules."""
  axes, shape = dict(nn.get_logical_axis_rules()).get(name) or (), jax.sharding.get_abstract_mesh().shape
  return tuple(axis for axis in ((axes,) if isinstance(axes, str) else axes) if axis in shape)


def mesh_axes_per_dimension(*names: str | None) -> list[tuple[str, ...]]:
  """The mesh axes that shard each dimension of an array under the current rules; the first rule wins."""
  spec = nn.logical_to_mesh_axes(names) or [None] * len(names)
  return [(axes,) if isinstance(axes, str) else tuple(axes or ()) for axes in spec]


def shard_count(axes: tuple[str, ...] | str | None) -> int:
  """The number of shards along some axes of the current mesh."""
  shape = jax.sharding.get_abstract_mesh().shape
  return math.prod(shape.get(axis, 1) for axis in ((axes,) if isinstance(axes, str) else axes or ()))


def dividing_axes(name: str, size: int, taken: tuple[str, ...] = ()) -> tuple[str, ...]:
  """The axes of the current mesh that shard `size` of a logical axis, but for those `taken` by other
  dimensions; () if they do not divide it."""
  axes = tuple(axis for axis in mesh_axes_of(name) if axis not in taken and shard_count(axis) > 1)
  return axes if size % shard_count(axes) == 0 else ()


def shard_over_mesh_axes(x: Array, *axes: tuple[str, ...]) -> Array:
  """Constrains each dimension of an activation to explicit mesh axes, but for those that are manual here.

  Where the compiler shards nothing, outside a mesh or in a `shard_map` over all of it, it returns `x`; and in
  one over the stages of a pipeline, whose vmap would name their axis in the constraint, which JAX refuses.
  """
  mesh = jax.sharding.get_abstract_mesh()
  automatic = mesh.auto_axes
  if not automatic or 'stage' in mesh.manual_axes:
    return x
  axes = (tuple(axis for axis in names if shard_count(axis) > 1 and axis in automatic) for names in axes)
  return jax.lax.with_sharding_constraint(x, PartitionSpec(*(names or None for names in axes)))


def shard_by_rules_here(*names: str | None) -> Callable[[Array], Array]:
  """`x → shard(x, *names)` by the rules in force now, wherever it is called; manual mesh axes are left out.

  A gradient is traced after the place where its function is called, under the rules that are in force then.
  """
  axes = mesh_axes_per_dimension(*names)
  return lambda x: shard_over_mesh_axes(x, *axes)


def with_logical_axes(
  initializer: Callable, names: tuple[str, ...], inputs: tuple[int, ...] | None = None
) -> Callable[..., Parameter]:
  """Wraps an initializer so that its parameter carries its logical axes (a boxed `Parameter`).

  Args:
    inputs: the axes that are contracted with the input; None: as the initializer says.
  """
  inputs = getattr(initializer, 'inputs', ()) if inputs is None else inputs
  adjust = getattr(initializer, 'adjust', None)

  def init(key, shape, dtype=jnp.float32):
    validate_axes(names, len(shape))
    value = initializer(key, shape, dtype)
    value = value if adjust is None else adjust(value, names, inputs)
    from_end = tuple(axis - len(shape) for axis in inputs)
    return Parameter(value, names, initializer=str(initializer), inputs=from_end)

  return init


def require_axes(params: PyTree) -> None:
  """Raises ValueError for a parameter without logical axes, as a layer of plain Flax makes it, by name."""
  for path, leaf in jax.tree_util.tree_leaves_with_path(params, is_leaf=lambda x: isinstance(x, Parameter)):
    if not isinstance(leaf, Parameter):
      name = '/'.join(str(key.key) for key in path if hasattr(key, 'key'))
      raise ValueError(
        f'the parameter {name} has no logical axes, which say how devices share it; use '
        'tfm.layers.linear.Linear for a matrix, and for another parameter '
        "tfm.parallel.sharding.with_logical_axes(initializer, axes), such as ('heads',)"
      )


def parse_rules(rules: Mapping[str, str]) -> Rules:
  """`{'batch': 'data fsdp', 'length': ''}` → `(('batch', ('data', 'fsdp')), ('length', ()))`.

  Order matters: if two axes of one array map to the same mesh axis, the first rule wins.
  """
  for name in rules:
    if name not in AXES:
      raise ValueError(f'rules.{name} is not a logical axis; use one of {", ".join(AXES)}')
    axes = rules[name].split()
    require(
      len({*axes}) == len(axes), f'rules.{name}={rules[name]!r} has an axis of the mesh twice; leave one out'
    )
  return tuple((name, tuple(rules[name].split())) for name in AXES if name in rules)


def unbox_reshaped(tree: PyTree, params: PyTree) -> PyTree:
  """Unboxes every leaf of `tree` that has the axes of a parameter but not its shape.

  These are adafactor's factored moments; unboxed, they are replicated, which suits their size.
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
  """The divisibility constraint of every sharded dimension of every parameter."""
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
  axis_names = ' × '.join(f'config.mesh.{axis}' for axis in axes)
  return (
    f'{axis_names} = {parts} splits {name!r} of the parameter {where} into {parts} shards, which do not '
    f'divide its size {size}; '
    f"change the size or config.mesh.{axes[-1]}, or replicate it with config.rules.{name}=''"
  )


def _idle_axis_message(axis: str, parts: int) -> str:
  why = (
    'pipeline stages need stacked layers; set config.model.scan=True'
    if axis == 'stage'
    else 'map a logical axis to it in the rules'
  )
  return (
    f'config.mesh.{axis}={parts} shards nothing, so {parts} devices would repeat the same computation; {why}'
  )


def validate_divisibility(
  boxed: PyTree, mesh: Mesh, rules: Rules, extra_constraints: Sequence[DivisibilityConstraint] = ()
) -> None:
  """Raises unless the mesh divides every parameter and every mesh axis shards something.

  Args:
    extra_constraints: further constraints on the mesh that the error proposes.

  Raises:
    ValueError: names the violated constraint and the nearest valid mesh.
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
  """The sharding of a batch: rows over the mesh axes of `batch`."""
  return NamedSharding(mesh, PartitionSpec(dict(rules).get('batch') or None))


def replicated(mesh: Mesh) -> NamedSharding:
  """The sharding of an array that every device holds in full."""
  return NamedSharding(mesh, PartitionSpec())


# JAX retraces a jitted function under another mesh, and by this under other rules, too.
_traced_rules = jax.make_user_context()


def context(mesh: Mesh, rules: Rules) -> Any:
  """A context manager that sets the current mesh and rules."""
  return _Contexts(jax.set_mesh(mesh), rules_context(rules))


def rules_context(rules: Rules) -> Any:
  """A context manager that sets the current rules."""
  return _Contexts(nn.logical_axis_rules(rules), _traced_rules(rules))


class _Contexts:
  def __init__(self, *managers: Any):
    self.managers = managers

  def __enter__(self):
    for manager in self.managers:
      manager.__enter__()

  def __exit__(self, *error):
    for manager in reversed(self.managers):
      manager.__exit__(*error)


def with_shardings(abstract: PyTree, shardings: PyTree) -> PyTree:
  """The same shapes and dtypes, with these shardings."""
  return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, shardings)
