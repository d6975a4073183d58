"""Folders outside the package whose files are variants too: FOLDER/positions/mine.py is the position `mine`.

A folder is laid out as the package is (positions/, masks/, data/sources/, …). --variants=FOLDER names it, or
the environment variable TFM_VARIANTS (several separated as in PATH), or an installed package with an entry
point of the group `tfm.variants`, whose value is the package that holds these folders:

  [project.entry-points."tfm.variants"]
  mylab = "mylab.variants"

Python finds FOLDER/positions/mine.py as the module tfm.positions.mine, because the search path of a slot's
package ends with the folders of that name here.
"""

import contextlib
import contextvars
import difflib
import functools
import importlib
import importlib.metadata
import importlib.util
import linecache
import os
import pathlib
import pkgutil
import traceback
from collections.abc import Iterator, Mapping
from types import ModuleType

from tfm.errors import require


VARIABLE = 'TFM_VARIANTS'
GROUP = 'tfm.variants'
PACKAGE = pathlib.Path(__file__).parent

# Folder → what checkpoints record of it: its path, or the installed package that has it.
_origins: dict[pathlib.Path, str] = {}
_recorded: contextvars.ContextVar[dict[str, str] | None] = contextvars.ContextVar('recorded', default=None)


@functools.cache
def slot_folders() -> tuple[str, ...]:
  """The folders of the package that hold variants: 'positions', 'data/sources', …."""
  return tuple(sorted(path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.glob('**/protocol.py')))


def add_folder(folder: str | os.PathLike, named_by: str = '', origin: str = '') -> None:
  """Makes the files of a folder variants.

  Args:
    named_by: a prefix of error messages, such as '--variants='.
    origin: what checkpoints record; '': the folder's path.

  Raises:
    ValueError: if it is no folder, has no slot's folder or one that is mistyped, or has a file of a name that
      is taken.
  """
  path = pathlib.Path(folder).expanduser().resolve()
  require(path.is_dir(), f'{named_by}{folder} is no folder; name one that has folders such as positions/')
  if path in _origins:
    return
  parents = {str(pathlib.PurePath(slot).parent) for slot in slot_folders()}  # '.', 'data', …
  inside = sorted(
    child.relative_to(path).as_posix() for parent in parents for child in path.glob(f'{parent}/*/')
  )
  for name in inside:
    near = difflib.get_close_matches(name, slot_folders(), n=1, cutoff=0.85)
    require(
      near in ([], [name]), f'{named_by}{folder} has {name}/, which is no slot; rename it to {"".join(near)}'
    )
  require(
    any(name in slot_folders() for name in inside),
    f'{named_by}{folder} has no folder of a slot, which are {", ".join(slot_folders())}',
  )
  for slot in slot_folders():
    for other in (PACKAGE, *_origins):
      taken = _module_names(path / slot) & _module_names(other / slot)
      require(
        not taken,
        f'{named_by}{folder} has {slot}/{min(taken, default="")}.py, and so has {other}; rename the file',
      )
  _origins[path] = origin or str(path)
  for slot in set(inside) & set(slot_folders()):
    _add_to_path(importlib.import_module(f'tfm.{slot.replace("/", ".")}'), path)


def _module_names(folder: pathlib.Path) -> set[str]:
  return {module.name for module in pkgutil.iter_modules([str(folder)])}


def folders() -> tuple[pathlib.Path, ...]:
  """All folders outside the package, absolute."""
  _add_configured_folders()
  return tuple(_origins)


@functools.cache
def _add_configured_folders() -> None:
  """Adds the folders of the environment variable and of entry points, once."""
  for folder in filter(None, os.environ.get(VARIABLE, '').split(os.pathsep)):
    add_folder(folder, f'{VARIABLE}=')
  for point in importlib.metadata.entry_points(group=GROUP):
    package = importlib.util.find_spec(point.value)
    require(
      bool(package and package.submodule_search_locations),
      f'the entry point {point.name!r} of {GROUP} names {point.value!r}, which is no package',
    )
    origin = f'the package {point.dist.name} {point.dist.version}'
    add_folder(package.submodule_search_locations[0], f'the entry point {point.name!r}: ', origin)


def extend_path(package: ModuleType) -> list[str]:
  """The search path of a slot's package, with the folders of that slot outside the package."""
  for folder in folders():
    _add_to_path(package, folder)
  return package.__path__


def _add_to_path(package: ModuleType, folder: pathlib.Path) -> None:
  place = folder / _slot_path(package.__name__)
  if place.is_dir() and str(place) not in package.__path__:
    package.__path__.append(str(place))
    importlib.invalidate_caches()


def _slot_path(module: str) -> str:
  """'tfm.data.sources.mine' → 'data/sources/mine'."""
  return module.removeprefix('tfm.').replace('.', '/')


@contextlib.contextmanager
def noting_origin() -> Iterator[None]:
  """Adds to an exception of the block a note that names the variant, the file and the line that raised it, if
  they are in a folder outside the package.
  """
  try:
    yield
  except Exception as error:
    if note := describe_origin(error):
      error.add_note(note)
    raise


def describe_origin(error: BaseException) -> str:
  """Which line of a variant outside the package raised an exception, or the cause of it; '' if none did.

  A ValueError that is a cause is how a variant refuses a setting: the exception that it caused repeats it.
  """
  link, note = error, ''
  while link is not None and not note:
    for frame, line in traceback.walk_tb(link.__traceback__):
      file = pathlib.Path(frame.f_code.co_filename)
      for folder in filter(file.is_relative_to, _origins):
        name, code = file.relative_to(folder).with_suffix(''), linecache.getline(str(file), line).strip()
        note = f'raised by the variant {name}, line {line} of {file}: {code}'
    if note and link is not error and isinstance(link, ValueError):
      return ''
    link = link.__cause__
  return note


@contextlib.contextmanager
def recording() -> Iterator[Mapping[str, str]]:
  """Yields what `record` adds in the block: 'positions/mine' → the folder, or the package that has it."""
  recorded: dict[str, str] = {}
  token = _recorded.set(recorded)
  try:
    yield recorded
  finally:
    _recorded.reset(token)


def record(module: ModuleType) -> None:
  """Records a variant's module, if it comes from a folder outside the package and a block is recording."""
  recorded, file = _recorded.get(), pathlib.Path(module.__file__).resolve()
  for folder, origin in _origins.items():
    if recorded is not None and file.is_relative_to(folder):
      recorded[_slot_path(module.__name__)] = origin


def require_available(recorded: Mapping[str, str], where: str) -> None:
  """Raises ValueError, naming its folder, for a recorded variant that is not here.

  Args:
    where: what recorded it, such as a checkpoint's folder.
  """
  for name, origin in recorded.items():
    slot, _, variant = name.rpartition('/')
    path = extend_path(importlib.import_module(f'tfm.{slot.replace("/", ".")}'))
    remedy = f'install {origin}' if origin.startswith('the package ') else f'add --variants={origin}'
    require(
      any(module.name == variant for module in pkgutil.iter_modules(path)),
      f'{where} needs {name}.py, a variant that tfm does not have; {remedy}',
    )
