"""A lock on a working directory, so that two processes never train in it at once."""

import contextlib
import errno
import fcntl
import os
import pathlib
import socket
import time
from collections.abc import Iterator, Sequence

from tfm.training.progress_line import print_status


FILE = 'lock'
# How often a held lock is tried, and seconds between: `is_locked` holds it for an instant.
ATTEMPTS, PAUSE = 5, 0.05
HELD = errno.EWOULDBLOCK, errno.EACCES


@contextlib.contextmanager
def lock_workdir(workdir: pathlib.Path) -> Iterator[None]:
  """Holds the lock file of a directory, which must exist. The system releases it when the process ends.

  On a file system without locks a notice is printed, and nothing is locked.

  Raises:
    ValueError: naming the process that holds it.
  """
  path = workdir / FILE
  descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
  try:
    for attempt in range(ATTEMPTS):
      try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
      except OSError as error:
        if error.errno not in HELD or attempt == ATTEMPTS - 1:
          raise
        time.sleep(PAUSE)
  except OSError as error:
    holder = os.read(descriptor, 1000).decode(errors='replace').strip()
    os.close(descriptor)
    if error.errno not in HELD:
      print_status(f'{path} cannot be locked ({error.strerror}): start no second process in this directory')
      yield
      return
    raise ValueError(
      f'--workdir={workdir} is in use by {holder or "another process"}; wait for it, stop it, or use another '
      'directory'
    ) from None
  try:
    os.truncate(path, 0)
    os.write(
      descriptor,
      f'process {os.getpid()} on {socket.gethostname()}, since {time.strftime("%F %T")}\n'.encode(),
    )
    yield
  finally:
    os.close(descriptor)


@contextlib.contextmanager
def lock_free_folders(folders: Sequence[pathlib.Path]) -> Iterator[bool]:
  """Holds folders, which it creates, as `lock_workdir` does; False, and a message, if another process holds
  one of them.
  """
  with contextlib.ExitStack() as stack:
    try:
      for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(lock_workdir(folder))
      is_free = True
    except ValueError as error:
      print_status(f'left to another process: {error}')
      is_free = False
    yield is_free


def is_locked(workdir: pathlib.Path) -> bool:
  """Whether a process trains in a directory; False on a file system without locks."""
  try:
    descriptor = os.open(workdir / FILE, os.O_RDONLY)
  except FileNotFoundError:
    return False
  try:
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return False
  except OSError as error:
    return error.errno in HELD
  finally:
    os.close(descriptor)
