"""The directory of prepared data, which several processes may write at the same time."""

import os
import pathlib
import shutil
import uuid
from typing import Callable


def directory() -> pathlib.Path:
  """Returns the default cache directory: `$TFM_CACHE`, or `~/.cache/tfm`."""
  return pathlib.Path(os.environ.get('TFM_CACHE') or '~/.cache/tfm').expanduser()


def create_once(path: pathlib.Path, write: Callable[[pathlib.Path], None]) -> pathlib.Path:
  """Returns the directory `path`; if it does not exist, `write` fills it first.

  `write` receives a temporary directory next to `path`, which is renamed when it is complete: no reader sees
  an incomplete directory. If several processes write the same content, the first to finish wins and all read
  its result.
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
