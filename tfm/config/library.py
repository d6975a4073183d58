"""Files of configs and studies: by path, or by the name of one that comes with tfm.

The name `lm` is configs/lm.py, `position` is experiments/position.py. In a wheel the folders are part of the
package (setup.py); in a clone, also in its editable install, they are beside it.
"""

import ast
import importlib.util
import pathlib
from collections.abc import Callable, Iterable

import tfm
from tfm.errors import FileError, parsing, require, suggest


CONFIGS, EXPERIMENTS = 'configs', 'experiments'


def list_files(folder: str) -> dict[str, pathlib.Path]:
  """Name → file of everything in CONFIGS or EXPERIMENTS, sorted by name."""
  package = pathlib.Path(tfm.__file__).parent
  place = package / folder if (package / folder).is_dir() else package.parent / folder
  return {path.stem: path for path in sorted(place.glob('*.py'))}


def summary(file: pathlib.Path) -> str:
  """The first line of a file's docstring; the file is not executed."""
  return ast.get_docstring(ast.parse(file.read_text(encoding='utf-8'))).splitlines()[0]


def find_file(text: str, folder: str, flag: str = '') -> str:
  """The path of a file: `text` if it has a slash or a suffix, else that of the file of this name in `folder`.

  Args:
    flag: the command-line flag, such as `--config=`, as a prefix of error messages.

  Raises:
    ValueError: for a name that `folder` does not have, or a path that is no file.
  """
  files, path = list_files(folder), pathlib.Path(text)
  if len(path.parts) == 1 and not path.suffix:
    remedy = f'use {flag}{text}.py' if path.with_suffix('.py').is_file() else suggest(text, files)
    require(text in files, f'{flag}{text} is neither a path nor a name; {remedy}')
    return str(files[text])
  hint = f', or {flag}{path.stem}, which comes with tfm' if path.stem in files else ''
  require(path.is_file(), f'{flag}{text} is no file; use the path of one{hint}')
  return text


class UnknownArgument(FileError):
  """A name after the colon that a config or study does not have, and the names that it has."""

  def __init__(self, argument: str, names: Iterable[str]):
    super().__init__(argument)
    self.argument, self.names = argument, tuple(names)


def require_argument(argument: str, names: Iterable[str] = ()) -> None:
  """For `get_config` and `get_study`: raises UnknownArgument for an argument that is none of these names."""
  if argument and argument not in names:
    raise UnknownArgument(argument, names)


def load_function(path: str, function: str, flag: str = '', shared: Iterable[str] = ()) -> Callable:
  """Executes a Python file and returns the function of one argument that it defines.

  Args:
    path: the file.
    function: the function's name.
    flag: the command-line flag that names the file, such as `--config=`, as a prefix of error messages.
    shared: arguments that the caller takes for all files, for error messages.

  Raises:
    ValueError: if the file does not define the function.
  """
  module_spec = importlib.util.spec_from_file_location(f'tfm_{function}', path)
  if module_spec is None:
    raise ValueError(f'{flag}{path} is not a Python file; name it with the ending .py')
  module = importlib.util.module_from_spec(module_spec)
  with parsing(path, f'Python that defines {function}(arg)'):
    module_spec.loader.exec_module(module)
  if not callable(getattr(module, function, None)):
    raise ValueError(f'{flag}{path} defines no {function}(arg)')

  def call(argument):
    try:
      with parsing(path, f'{function}({argument!r})'):
        return getattr(module, function)(argument)
    except UnknownArgument as error:
      known = suggest(error.argument, [*error.names, *shared])
      raise ValueError(f'{flag}{path} has no {error.argument!r}; {known}') from error

  return call
