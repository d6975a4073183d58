"""The variants of a slot: which there are, and the class in the file of one."""

import importlib
import inspect
import pkgutil
from types import ModuleType

from tfm import variant_folders
from tfm.errors import MissingExtra, parsing, suggest
from tfm.spec.syntax import SpecError, list_names


def variant_names(package: ModuleType) -> tuple[str, ...]:
  """Lists the variants of a slot: its files' names, except `protocol` and names that begin with `_`; those of
  folders outside the package too (`tfm.variant_folders`).
  """
  return tuple(sorted(variant_files(package)))


def variant_files(package: ModuleType) -> dict[str, str]:
  """Name → file of the variants of a slot; imports none of them."""
  return {
    module.name: f'{module.module_finder.path}/{module.name}.py'
    for module in pkgutil.iter_modules(variant_folders.extend_path(package))
    if module.name != 'protocol' and not module.name.startswith('_')
  }


def find_variant(name: str, package: ModuleType, base: type, text: str | None = None) -> type:
  """Imports the one public class derived from `base` in the file `name.py` of `package`."""
  file = _find_file(name, package, text)
  try:
    with parsing(file, f'a variant of {_slot_name(package)}'):
      module = importlib.import_module(f'{package.__name__}.{name}')
  except MissingExtra as error:
    raise SpecError(f'{text or name!r}: {error}') from error
  classes = [
    c
    for c in vars(module).values()
    if inspect.isclass(c)
    and issubclass(c, base)
    and c.__module__ == module.__name__
    and not c.__name__.startswith('_')
  ]
  if len(classes) != 1:
    raise SpecError(
      f'{file} must define one public class derived from {base.__module__}.{base.__name__}, and has '
      f'{", ".join(c.__name__ for c in classes) or "none"}'
    )
  variant_folders.record(module)
  return classes[0]


def require_variants(text: str, package: ModuleType) -> None:
  """Raises SpecError for a spec with a name that the slot does not have; imports no variant."""
  for name in list_names(text):
    _find_file(name, package, text)


def _find_file(name: str, package: ModuleType, text: str | None) -> str:
  files = variant_files(package)
  if name not in files:
    listed, *near = suggest(name, sorted(files)).split('; ')
    own = [] if variant_folders.folders() else ['one of your own needs --variants=FOLDER']
    remedy = '; '.join([listed, *own, *near])
    raise SpecError(f'{text or name!r} names {name!r}, which {_slot_name(package)} does not have; {remedy}')
  return files[name]


def _slot_name(package: ModuleType) -> str:
  return package.__name__.rpartition('.')[2]
