"""A lock on a working directory, so that two processes never train in it at once."""

import contextlib
import errno
import fcntl
import os
import pathlib
import socket
import time
from collections.abc import Iterator

from tfm.training.progress_line import print_status


FILE = 'lock'


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
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError as error:
    holder = os.read(descriptor, 1000).decode(errors='replace').strip()
    os.close(descriptor)
    if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
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
