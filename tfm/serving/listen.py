"""Where a server listens, and how it ends."""

import contextlib
import errno
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from tfm.errors import importing_extra, require


with importing_extra('serve'):
  import uvicorn


LOOPBACK = '127.0.0.1'
# A page of another site that calls itself this machine by DNS is refused.
LOOPBACK_NAMES = [LOOPBACK, 'localhost']


def open_listener(host: str, port: int) -> socket.socket:
  """A socket that listens at a port; 0 for a free one.

  Raises:
    ValueError: for a host or a port that cannot be used.
  """
  require(0 <= port < 2**16, f'--port={port} must lie in [0, 65535]')
  try:
    return socket.create_server((host, port))
  except OSError as error:
    is_host = error.errno < 0 or error.errno == errno.EADDRNOTAVAIL  # below 0: the name is not known
    require(not is_host, f'--host={host} is no address of this machine; 127.0.0.1 is')
    reason = os.strerror(error.errno)
    raise ValueError(f'--port={port} cannot be used ({reason}); --port=0 takes a free one') from None


def print_address(address: str) -> None:
  """Prints where a page or an interface is."""
  print(f'{address} (Ctrl-C ends it)', flush=True)


def run(
  app: Any, listener: socket.socket, grace: int, on_start: Callable[[str], None] = print_address
) -> None:
  """Serves an ASGI application until SIGINT or SIGTERM; then no request is accepted, and those that are
  answered have `grace` seconds to end.

  Args:
    on_start: gets the address.
  """
  host, port = listener.getsockname()[:2]
  on_start(f'http://{host}:{port}/')
  config = uvicorn.Config(app, log_level='warning', timeout_graceful_shutdown=grace)
  # Uvicorn raises the signal again when it has stopped; SIGTERM must not end the process with another status.
  previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
  try:
    with contextlib.suppress(KeyboardInterrupt):
      uvicorn.Server(config).run(sockets=[listener])
  finally:
    signal.signal(signal.SIGTERM, previous)
