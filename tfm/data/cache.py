"""Where prepared data is kept, and how several processes may write it at once."""

import os
import pathlib
import shutil
import uuid
from typing import Callable


def directory() -> pathlib.Path:
  """The default cache directory: `$TFM_CACHE`, or else `~/.cache/tfm`."""
  return pathlib.Path(os.environ.get('TFM_CACHE') or '~/.cache/tfm').expanduser()


def once(path: pathlib.Path, write: Callable[[pathlib.Path], None]) -> pathlib.Path:
  """Returns the directory `path`, first filled by `write` if it does not exist.

  `write` gets a new directory next to `path`, which is renamed when complete: a reader never sees a
  part, and of several processes that write the same content, the first wins and all read its.
  """
  if path.exists():
    return path
  part = path.parent / f'.{path.name}.{uuid.uuid4().hex}'
  part.mkdir(parents=True)
  try:
    write(part)
    try:
      part.rename(path)
    except OSError:
      if not path.exists():
        raise
  finally:
    shutil.rmtree(part, ignore_errors=True)
  return path
