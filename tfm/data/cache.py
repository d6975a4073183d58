"""The directory of prepared data, which several processes may write at the same time.

Every directory in it has the digests of its files, which are verified at each use.
"""

import os
import pathlib
import shutil
import uuid
from typing import Callable

from tfm.data import file_hashes
from tfm.errors import reporting_full_disk


def directory() -> pathlib.Path:
  """Returns the default cache directory: `$TFM_CACHE`, or `~/.cache/tfm`."""
  return pathlib.Path(os.environ.get('TFM_CACHE') or '~/.cache/tfm').expanduser()


def create_once(path: pathlib.Path, write: Callable[[pathlib.Path], None]) -> pathlib.Path:
  """Returns the directory `path`; if it does not exist, `write` fills it first.

  `write` receives a temporary directory next to `path`, which is renamed when it is complete: no reader sees
  an incomplete directory. If several processes write the same content, the first to finish wins and all read
  its result.

  Raises:
    ValueError: if a file is no longer what was written, naming it.
    MachineFailure: if the disk is full.
  """
  if path.exists():
    return verify(path)
  part = path.parent / f'.{path.name}.{uuid.uuid4().hex}'
  try:
    with reporting_full_disk(path.parent, 'free some space, or name a folder on another disk in TFM_CACHE'):
      part.mkdir(parents=True)
      write(part)
      file_hashes.write_digests(part)
    try:
      part.rename(path)
    except OSError:
      if not path.exists():
        raise
  finally:
    shutil.rmtree(part, ignore_errors=True)
  return verify(path)


def verify(path: pathlib.Path) -> pathlib.Path:
  """Returns a directory of the cache, if its files are those that were written.

  Raises:
    ValueError: naming the first file that differs.
  """
  expected = file_hashes.read_digests(path)
  if not expected:
    damage = f'{path / file_hashes.FILE} is missing or empty, as earlier versions left it'
  else:
    damage = file_hashes.find_unlisted(path, expected) or file_hashes.find_damage(path, expected)
  if damage:
    raise ValueError(f'prepared data is damaged: {damage}; delete {path}, and it is prepared again')
  return path
