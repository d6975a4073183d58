"""Refusals: a condition with its sentence, the name that was probably meant, and files of others."""

import contextlib
import difflib
import errno
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any


# A command exits with it on invalid input; after any other failure it may be run again.
INVALID_INPUT_STATUS = 2


class FileError(ValueError):
  """A file that cannot be read as what it should be; the message names it."""


class MachineFailure(OSError):
  """What the machine could not do though the input is valid, such as writing to a full disk.

  The command exits with status 1, after which launchers run it again; invalid input has status 2.
  """


class MissingExtra(ImportError, ValueError):
  """A package that is not installed because it belongs to an extra; the message names the extra."""


@contextlib.contextmanager
def importing_extra(name: str) -> Iterator[None]:
  """The boundary to packages that only the extra `[NAME]` installs: they are imported in such a block.

  Raises:
    MissingExtra: 'PACKAGE is not installed; run in the clone: pip install -e '.[NAME]''.
  """
  try:
    yield
  except ModuleNotFoundError as error:
    package = error.name.partition('.')[0]
    remedy = f"run in the clone: pip install -e '.[{name}]'"
    raise MissingExtra(f'{package} is not installed; {remedy}') from error


@contextlib.contextmanager
def writing(path: str | pathlib.Path, advice: str) -> Iterator[None]:
  """The boundary to what writes files: whatever it raises becomes a `MachineFailure`.

  Args:
    path: the file or folder, for the message; advice: what would do.

  Raises:
    MachineFailure: 'PATH cannot be written: …; ADVICE'.
  """
  try:
    yield
  except MachineFailure:
    raise
  except (OSError, ValueError) as error:  # tensorstore raises ValueError for a full disk
    lines = str(error).strip().splitlines() or [type(error).__name__]
    reason = FULL_DISK if FULL_DISK in str(error) else getattr(error, 'strerror', None) or abridge(lines[0])
    place = getattr(error, 'filename', None) or path  # the file that failed, of several
    raise MachineFailure(f'{place} cannot be written: {reason}; {advice}') from error


FULL_DISK = os.strerror(errno.ENOSPC)


@contextlib.contextmanager
def reporting_full_disk(path: str | pathlib.Path, advice: str) -> Iterator[None]:
  """As `writing`, for code that also reads: only errors of a full disk become a `MachineFailure`."""
  try:
    yield
  except Exception as error:
    chain = [error]
    while chain[-1].__cause__ or chain[-1].__context__:
      chain.append(chain[-1].__cause__ or chain[-1].__context__)
    if not any(FULL_DISK in str(each) for each in chain):
      raise
    raise MachineFailure(f'{path} cannot be written: {FULL_DISK}; {advice}') from error


def describe(error: Exception) -> str:
  """The sentence of an error; one of the system names its file first."""
  if isinstance(error, OSError) and error.filename is not None and error.strerror:
    path = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else error.filename
    return f'{path} cannot be used: {error.strerror}; check the path and its permissions'
  return str(error)


@contextlib.contextmanager
def parsing(path: str | pathlib.Path, kind: str) -> Iterator[None]:
  """The boundary to files that others wrote: whatever their parser raises becomes a `FileError`.

  Args:
    path: the file or folder.
    kind: what it should be, such as 'a tokenizer', for the message.

  Raises:
    FileError: 'PATH cannot be read as KIND: …'; errors that name the path already pass, OSErrors and
      MissingExtra too.
  """
  try:
    yield
  except (FileError, MissingExtra, OSError):
    raise
  except (Exception, SystemExit) as error:  # parsers raise anything, and a file that is executed may exit
    if isinstance(error, ValueError) and str(path) in str(error):
      raise
    lines = str(error).strip().splitlines()
    text = lines[0][:300] if lines else ''
    reason = text if isinstance(error, ValueError) and text else f'{type(error).__name__}: {text}'
    raise FileError(f'{path} cannot be read as {kind}: {reason.removesuffix(": ")}') from error


def read_json_object(path: pathlib.Path, kind: str = 'a JSON object') -> dict[str, Any]:
  """Reads a file that holds one JSON object.

  Raises:
    FileError: if it does not.
  """
  with parsing(path, kind):
    content = parse_json(path.read_text(encoding='utf-8'))
    require(isinstance(content, dict), f'it is a {type(content).__name__}, not an object')
  return content


def parse_json(text: str | bytes) -> Any:
  """`json.loads`, with a ValueError for nesting that is too deep, as for everything else that is no JSON, and
  for a name that an object has twice.
  """

  def unique(pairs):
    found = dict(pairs)
    names = [name for name, _ in pairs]
    twice = next((name for name in found if names.count(name) > 1), None) if len(found) < len(names) else None
    require(twice is None, f'it has {twice!r} twice in one object')
    return found

  try:
    return json.loads(text, object_pairs_hook=unique)
  except RecursionError as error:
    raise ValueError(str(error)) from None


def require(condition: bool, sentence: str) -> None:
  """Raises ValueError with the sentence unless the condition holds."""
  if not condition:
    raise ValueError(sentence)


@contextlib.contextmanager
def prefixing(prefix: str) -> Iterator[None]:
  """Puts a prefix, such as the field or the flag at fault, before the message of a ValueError."""
  try:
    yield
  except ValueError as error:
    raise ValueError(f'{prefix}{error}') from error


def abridge(message: str) -> str:
  """A message as it is printed: long words and long messages are cut in their middle."""

  def cut(text, keep):
    return f'{text[:keep]}…{text[-keep // 4 :]}' if len(text) > 2 * keep else text

  words = re.sub(r'\S{300,}', lambda word: cut(word[0], 150), message)  # paths stay whole
  return cut(words, 700)


def suggest(name: str, known) -> str:
  """`known: a, b, c; did you mean 'b'?`"""
  known = list(known)
  near = difflib.get_close_matches(name, known, n=1)
  listed = f'known: {", ".join(known) or "none"}'
  return f'{listed}; did you mean {near[0]!r}?' if near else listed
