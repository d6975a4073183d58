"""The names of the families of published models, read from their files without importing them."""

import ast
import pathlib
from collections.abc import Iterator

import tfm.hf.families
from tfm import spec, variant_folders
from tfm.config.names import OneOf


def validate_model_type(name: str) -> None:
  """Raises ValueError for a model_type that no family has.

  Families outside the package are known only when they are imported; with folders of such, each name passes.
  """
  if not variant_folders.folders():
    OneOf('', list_model_types()).validate(name)


def list_model_types() -> tuple[str, ...]:
  """The model_type of each family of the package: the first or the named argument of each of `FAMILIES`."""
  files = sorted(spec.variant_files(tfm.hf.families).values())
  return tuple(name for file in files for name in _read_model_types(pathlib.Path(file)))


def _read_model_types(file: pathlib.Path) -> Iterator[str]:
  for node in ast.parse(file.read_text(encoding='utf-8')).body:
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == 'FAMILIES':
      for call in node.value.elts:
        named = [keyword.value for keyword in call.keywords if keyword.arg == 'model_type']
        yield ast.literal_eval([*named, *call.args][0])
