"""Files that a kill cannot damage."""

import os
import pathlib

from tfm.errors import writing


def write_atomically(path: pathlib.Path, text: str) -> None:
  """Replaces a text file at once: a kill or another process finds the old content or the new one.

  Raises:
    MachineFailure: if it cannot be written.
  """
  with writing(path, 'free some space and run the command again'):
    _replace(path, text)


def _replace(path: pathlib.Path, text: str) -> None:
  part = path.with_name(f'{path.name}.{os.getpid()}.part')
  with part.open('w', encoding='utf-8') as file:
    file.write(text)
    file.flush()
    os.fsync(file.fileno())
  part.replace(path)
