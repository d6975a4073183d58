"""Paths that stand where a source should: they are refused with the specs of the sources that read them.

What a source reads is taken from its file, without importing it.
"""

import ast
import json
import os
import pathlib
from collections.abc import Iterator

from tfm import spec
from tfm.data import sources
from tfm.errors import parsing


def require_source(text: str) -> None:
  """Raises SpecError for a spec with a name that no source has; for a path, with the specs that read it."""
  try:
    spec.require_variants(text, sources)
  except spec.SpecError as error:
    specs = specs_of_path(text)
    if not specs:
      raise
    raise spec.SpecError(f'{text!r} is a path, not a source; use {" or ".join(specs)}') from error


def specs_of_path(path: str) -> list[str]:
  """Lists the specs of the sources that read a file, a pattern of files, or the files in a folder; `…` stands
  for what the path does not say.
  """
  folder = os.path.expanduser(path)
  is_folder = os.path.isdir(folder)
  names, endings = [path], {}  # suffix → the same with that of a compression
  if is_folder:
    names = [file.name for depth in ('*', '*/*') for file in pathlib.Path(folder).glob(depth)]
  for name in names:
    plain = name.removesuffix('.gz').removesuffix('.zst')
    suffix = pathlib.PurePath(plain).suffix
    endings[suffix] = suffix + name[len(plain) :]
  specs = []
  for variant, file in sorted(spec.variant_files(sources).items()):
    for fields, required in _read_classes(file):
      patterns = [endings[suffix] for suffix in fields.get('suffixes', ()) if suffix in endings]
      patterns = [f'{path.rstrip("/")}/**/*{ending}' if is_folder else path for ending in patterns]
      if is_folder and endings.keys() & {*fields.get('folder_suffixes', ())}:
        patterns = [path]
      more = [f'{name}=…' for name in required[1:]]
      for pattern in patterns:
        specs.append(f'{variant}({", ".join([json.dumps(pattern, ensure_ascii=False), *more])})')
  return specs


def _read_classes(file: str) -> Iterator[tuple[dict[str, tuple[str, ...]], list[str]]]:
  """Yields the suffixes of each class of a file, by the name of the attribute, and its required fields."""
  with parsing(file, 'a source whose suffixes are literals'):
    for node in ast.parse(pathlib.Path(file).read_text(encoding='utf-8')).body:
      if isinstance(node, ast.ClassDef):
        lines = [line for line in node.body if isinstance(line, (ast.Assign, ast.AnnAssign))]
        names = {name: line for line in lines for name in map(ast.unparse, _targets(line))}
        suffixes = {name: line.value for name, line in names.items() if name.endswith('suffixes')}
        required = [name for name, line in names.items() if line.value is None]
        yield {name: ast.literal_eval(value) for name, value in suffixes.items()}, required


def _targets(line: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
  return line.targets if isinstance(line, ast.Assign) else [line.target]
