"""The server of a board: on this machine alone, with pages that fetch nothing from elsewhere."""

import pathlib
import threading
from collections.abc import Callable

from tfm.errors import describe, importing_extra, require


with importing_extra('serve'):
  from starlette.applications import Starlette
  from starlette.middleware import Middleware
  from starlette.middleware.trustedhost import TrustedHostMiddleware
  from starlette.requests import Request
  from starlette.responses import HTMLResponse
  from starlette.routing import Mount, Route
  from starlette.staticfiles import StaticFiles

from tfm.board import attention, pages
from tfm.serving import listen


GRACE = 1  # seconds to answer what was asked before the end


def build_app(folder: pathlib.Path) -> Starlette:
  """The pages of a folder, and its files below /files/."""
  lock = threading.Lock()  # Matplotlib's settings are of the whole process

  def page(path: str, render: Callable[[Request], str]) -> Route:
    def respond(request: Request) -> HTMLResponse:
      with lock:
        try:
          return HTMLResponse(render(request))
        except (ValueError, OSError) as error:
          return HTMLResponse(pages.render_message('That did not work', describe(error)), 400)

    return Route(path, respond)

  def show_run(request):
    query = request.query_params
    return pages.render_run(folder, query.get('run', ''), query.get('metric', 'loss'))

  def compare(request):
    query = request.query_params
    return pages.render_comparison(folder, query.getlist('run'), query.get('metric', 'loss'))

  def attend(request):
    query = request.query_params
    name, text = query.get('run', ''), query.get('text', '')
    return attention.render_attention(pages.find_run(folder, name), name, text, query.get('target') or None)

  return Starlette(
    routes=[
      page('/', lambda request: pages.render_overview(folder)),
      page('/run', show_run),
      page('/compare', compare),
      page('/attention', attend),
      Mount('/files', StaticFiles(directory=folder)),
    ],
    middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=listen.LOOPBACK_NAMES)],
  )


def serve(folder: pathlib.Path, port: int, on_start: Callable[[str], None] = listen.print_address) -> None:
  """Serves a folder until SIGINT or SIGTERM.

  Args:
    port: 0 for a free one; on_start: gets the address.

  Raises:
    ValueError: if there is no such folder, or the port is in use.
  """
  require(folder.is_dir(), f'{folder} is no folder')
  with listen.open_listener(listen.LOOPBACK, port) as listener:
    listen.run(build_app(folder), listener, GRACE, on_start)
