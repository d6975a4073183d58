"""What an application serves, and how it refuses."""

import abc
from typing import TYPE_CHECKING

from tfm.errors import importing_extra


with importing_extra('serve'):
  from fastapi import FastAPI

if TYPE_CHECKING:
  from tfm.serving.metrics import Metrics


class Refusal(Exception):
  """A request that is not served: HTTP status, sentence, and OpenAI's field and code of the error."""

  def __init__(self, status: int, message: str, field: str = '', code: str | None = None):
    super().__init__(message)
    self.status, self.message, self.field, self.code = status, message, field, code

  @property
  def kind(self) -> str:
    """OpenAI's type of the error."""
    kinds = {429: 'rate_limit_error', 404: 'not_found_error'}
    return kinds.get(self.status, 'invalid_request_error' if self.status < 500 else 'server_error')


class QueueFull(Exception):
  """More waits than the queue has room for; the message says so."""


class Unavailable(Exception):
  """Nothing can be computed any more; the message says why."""


class Service(abc.ABC):
  """A model that answers requests.

  Attributes:
    name: by which clients ask for it.
    failure: why nothing can be answered any more; '' if it can.
    waiting, active: texts that wait, and those that are computed.
  """

  failure: str = ''
  waiting: int = 0
  active: int = 0

  def __init__(self, name: str):
    self.name = name

  @abc.abstractmethod
  def add_routes(self, app: FastAPI, metrics: 'Metrics') -> None:
    """Adds its addresses to an application."""

  def start(self) -> None:
    """Begins to compute."""

  def stop(self) -> None:
    """Ends, after what is computed now."""

  def require_model(self, name: str) -> None:
    """Refuses a request for another model."""
    if name != self.name:
      raise Refusal(404, f'model={name!r} is not served; use {self.name!r}', 'model', 'model_not_found')
