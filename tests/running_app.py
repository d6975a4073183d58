"""An application on a free port of this machine."""

import contextlib
import threading
import time

import uvicorn


@contextlib.contextmanager
def running(app):
  """A block in which a server runs an application; yields its address."""
  server = uvicorn.Server(uvicorn.Config(app, port=0, log_level='warning'))
  thread = threading.Thread(target=server.run)
  thread.start()
  while not server.started:
    time.sleep(0.01)
  try:
    yield f'http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/'
  finally:
    server.should_exit = True
    thread.join()
