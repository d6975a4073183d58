"""The most bytes that the body of a request may have."""

from typing import Any

from tfm.errors import importing_extra


with importing_extra('serve'):
  from starlette.exceptions import HTTPException


class BodyLimit:
  """ASGI middleware that ends a request with status 413 as soon as its body is longer than `limit` bytes: by
  what it declares before any of it is read, and by what arrives.
  """

  def __init__(self, app: Any, limit: int):
    self.app, self.limit = app, limit

  async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
    declared = dict(scope.get('headers', ())).get(b'content-length', b'0')
    size = 0

    async def receive_within_limit():
      nonlocal size
      self.require_within_limit(int(declared) if declared.isdigit() else 0)
      message = await receive()
      size += len(message.get('body', b''))
      self.require_within_limit(size)
      return message

    await self.app(scope, receive_within_limit if scope['type'] == 'http' else receive, send)

  def require_within_limit(self, size: int) -> None:
    """Refuses a body of a size, where the application reads it."""
    if size > self.limit:
      raise HTTPException(413, f'the body is longer than {self.limit} bytes (--max_body); send less at once')
