"""The parameter table: what a model learns, one row for each array."""

import dataclasses
import math
import re
from collections.abc import Sequence

import flax.linen as nn
import jax

from tfm.parallel.sharding import Parameter, Rules
from tfm.shapes import PyTree


@dataclasses.dataclass(frozen=True)
class Row:
  """One parameter.

  Attributes:
    path: names of the modules that lead to it, and its own.
    shape, dtype, axes, initializer: as it was declared; `axes` are the logical ones.
    spec: for each dimension the mesh axes that shard it, '-' for none; '' without rules.
  """

  path: tuple[str, ...]
  shape: tuple[int, ...]
  dtype: str
  axes: tuple[str, ...]
  spec: tuple[str, ...]
  initializer: str

  @property
  def count(self) -> int:
    """The number of its elements."""
    return math.prod(self.shape)

  @property
  def kind(self) -> str:
    """What it is for; see `kind`."""
    return kind(self.path[:-1])

  def __str__(self):
    """The line of the golden text: nothing in it depends on the mesh or on other rows."""
    shape = '×'.join(map(str, self.shape))
    return '  '.join(('/'.join(self.path), shape, self.dtype, ' '.join(self.axes), self.initializer))


def rows(boxed: PyTree, rules: Rules = ()) -> list[Row]:
  """The rows of a tree of boxed (abstract) parameters, in the order of their paths.

  Raises:
    ValueError: for a parameter without logical axes, naming it.
  """

  def row(path, box):
    names = tuple(str(key.key) for key in path)
    if not isinstance(box, Parameter):
      raise ValueError(
        f'the parameter {"/".join(names)} has no logical axes; create it with `with_logical_axes`'
      )
    mesh_axes = nn.logical_to_mesh_axes(box.names, rules) if rules else ()
    spec = tuple('-' if not axes else axes if isinstance(axes, str) else '+'.join(axes) for axes in mesh_axes)
    return Row(names, box.value.shape, str(box.value.dtype), box.names, spec, box.initializer)

  return [
    row(*leaf)
    for leaf in jax.tree_util.tree_leaves_with_path(boxed, is_leaf=lambda x: isinstance(x, Parameter))
  ]


def kind(modules: Sequence[str]) -> str:
  """What the module at a path is for: its name within the block, or in the model; norms are one kind.

  stack/layers/block_0/mixer/q → mixer       stack/rest/block_1/mixer_norm → norm
  position_0 → position                      embedding → embedding
  """
  blocks = [i for i, name in enumerate(modules) if re.fullmatch(r'block_\d+', name)]
  inner = (
    modules[blocks[-1] + 1 :] if blocks else [name for name in modules if name not in ('encoder', 'stack')]
  )
  name = re.sub(r'_\d+$', '', inner[0]) if inner else 'other'
  return 'norm' if re.search(r'(^|_)norm(_|$)', name) else name
