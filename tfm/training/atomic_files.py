"""Files that a kill cannot damage."""

import os
import pathlib


def write_atomically(path: pathlib.Path, text: str) -> None:
  """Replaces a text file at once: a kill or another process finds the old content or the new one."""
  part = path.with_name(f'{path.name}.{os.getpid()}.part')
  with part.open('w', encoding='utf-8') as file:
    file.write(text)
    file.flush()
    os.fsync(file.fileno())
  part.replace(path)
