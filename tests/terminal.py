"""A pseudo-terminal in the place of stderr."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading

from tfm.data import progress_bar


@contextlib.contextmanager
def terminal(monkeypatch, columns=80):
  """A block whose stderr is a terminal; yields a function that returns all that was written so far, without
  control sequences, as lines. What is drawn anew appears anew.
  """
  master, slave = pty.openpty()
  fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('HHHH', 24, columns, 0, 0))
  written = []

  def read():
    with contextlib.suppress(OSError):  # the slave is closed
      while chunk := os.read(master, 65536):
        written.append(chunk)

  reader = threading.Thread(target=read)
  reader.start()
  for name in ('NO_COLOR', 'TTY_COMPATIBLE', 'FORCE_COLOR'):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv('TERM', 'xterm-256color')
  monkeypatch.setenv('COLUMNS', str(columns))  # rich asks the first of stdin, stdout and stderr
  try:
    with open(slave, 'w', encoding='utf-8') as stderr:
      with monkeypatch.context() as patch:
        patch.setattr(sys, 'stderr', stderr)
        patch.setattr(progress_bar.console, 'is_interactive', True)  # rich looks only once
        patch.setattr(progress_bar.console, '_width', columns)  # a width that it may have read long before
        yield lambda: split_lines(written)
  finally:
    reader.join(timeout=10)
    os.close(master)


def split_lines(written):
  text = b''.join(written).decode()
  return re.sub(r'\x1b\[[0-9;?]*[A-Za-z]', '', text).replace('\r\n', '\n').replace('\r', '\n').split('\n')
