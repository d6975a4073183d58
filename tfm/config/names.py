"""What a field may name: the variants of a slot, the entries of a table.

The names are read from the files' names and from their source, without importing them. So a mistyped one is
refused at once, before JAX is imported.
"""

import ast
import functools
import importlib
from types import ModuleType
from typing import Any, NamedTuple

from tfm import spec
from tfm.data.source_paths import require_source
from tfm.errors import require, suggest
from tfm.variant_folders import PACKAGE


class FromSlot(NamedTuple):
  """The default of a field whose value is a spec of a slot, or a tuple of such specs.

  Attributes:
    slot: the slot's package, below `tfm`.
    type: of the values.
  """

  default: Any
  slot: str
  type: Any = str

  def list_names(self) -> tuple[str, ...]:
    """The variants of the slot."""
    return spec.variant_names(self._package())

  def validate(self, text: str) -> None:
    """Raises ValueError for a name that the slot does not have."""
    spec.require_variants(text, self._package())

  def _package(self) -> ModuleType:
    return importlib.import_module(f'tfm.{self.slot}')


class FromSources(NamedTuple):
  """`FromSlot` of data.sources: a path alone is refused with the specs that read it."""

  default: str
  slot: str = 'data.sources'
  type: Any = str

  def validate(self, text: str) -> None:
    """Raises ValueError for a name that no source has, and for a path."""
    require_source(text)


class FromTable(NamedTuple):
  """The default of a field whose value is a spec that names an entry of a table, and `module:TABLE`."""

  default: str
  table: str
  type: Any = str

  def list_names(self) -> tuple[str, ...]:
    """The entries of the table."""
    return table_names(self.table)

  def validate(self, text: str) -> None:
    """Raises ValueError for a name that the table does not have."""
    spec.require_entry(text, self.list_names())


class OneOf(NamedTuple):
  """The default of a field whose value is one of some names, and these, or `module:TABLE`."""

  default: str
  names: str | tuple[str, ...]
  type: Any = str

  def list_names(self) -> tuple[str, ...]:
    """The values."""
    return table_names(self.names) if isinstance(self.names, str) else self.names

  def validate(self, text: str) -> None:
    """Raises ValueError for another value."""
    require(text in self.list_names(), f'{text!r} is unknown; {suggest(text, self.list_names())}')


@functools.cache
def table_names(table: str) -> tuple[str, ...]:
  """The names in a dictionary or tuple, such as 'training.schedule:SCHEDULES', read from the source of its
  module.
  """
  module, _, name = table.partition(':')
  source = PACKAGE.joinpath(*module.split('.')).with_suffix('.py').read_text(encoding='utf-8')
  (value,) = (
    node.value
    for node in ast.parse(source).body
    if isinstance(node, (ast.Assign, ast.AnnAssign))
    and ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0]) == name
  )
  if isinstance(value, ast.DictComp):  # {f.__name__: f for f in (noam, cosine)}
    return tuple(function.id for function in value.generators[0].iter.elts)
  return tuple(ast.literal_eval(key) for key in getattr(value, 'keys', None) or value.elts)


# The split of a command's flag; `test/web` is that of one source of a mixture.
SPLIT = OneOf('validation', 'data.documents:SPLITS')
