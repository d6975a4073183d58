"""An application around a service: its health, its metrics, its models, and errors in OpenAI's shape."""

import asyncio
import contextlib
from typing import Any

from tfm.errors import importing_extra
from tfm.serving import MAX_BODY, responses
from tfm.serving.body_limit import BodyLimit
from tfm.serving.generation import GenerationFailed
from tfm.serving.listen import LOOPBACK, LOOPBACK_NAMES
from tfm.serving.metrics import CONTENT_TYPE, Metrics
from tfm.serving.requests import describe_errors
from tfm.serving.service import QueueFull, Refusal, Service, Unavailable


with importing_extra('serve'):
  from fastapi import FastAPI, Response
  from fastapi.exceptions import RequestValidationError
  from fastapi.responses import JSONResponse
  from starlette.exceptions import HTTPException
  from starlette.middleware.trustedhost import TrustedHostMiddleware


def build_app(service: Service, host: str = LOOPBACK, max_body: int = MAX_BODY) -> FastAPI:
  """The application, which starts the service and stops it.

  Args:
    host: where it listens; on this machine alone, pages of other sites are refused.
    max_body: the most bytes of the body of a request.
  """

  @contextlib.asynccontextmanager
  async def run_service(app):
    service.start()
    yield
    await asyncio.to_thread(service.stop)

  app = FastAPI(title=f'tfm serve: {service.name}', lifespan=run_service, docs_url=None, redoc_url=None)
  metrics = Metrics(service)
  app.add_middleware(BodyLimit, limit=max_body)
  if host == LOOPBACK:
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK_NAMES)
  add_error_handlers(app, metrics)
  service.add_routes(app, metrics)

  @app.get('/v1/models')
  async def list_models():
    return dict(object='list', data=[describe_model(service)])

  @app.get('/v1/models/{name:path}')
  async def show_model(name: str):
    service.require_model(name)
    return describe_model(service)

  @app.get('/health')
  async def health():
    if service.failure:
      raise Refusal(503, service.failure)
    return dict(status='ok')

  @app.get('/metrics')
  async def show_metrics():
    return Response(metrics.format(), media_type=CONTENT_TYPE)

  return app


def describe_model(service: Service) -> dict[str, Any]:
  """An entry of /v1/models."""
  return dict(id=service.name, object='model', created=0, owned_by='tfm')


def add_error_handlers(app: FastAPI, metrics: Metrics) -> None:
  """Answers every error in OpenAI's shape."""

  def answer(error: Refusal, headers: dict[str, str] | None = None) -> JSONResponse:
    metrics.refused.labels(error.status).inc()
    body = responses.format_error(error.message, error.kind, error.field, error.code)
    return JSONResponse(body, error.status, headers)

  @app.exception_handler(Refusal)
  async def refuse(request, error):
    return answer(error)

  @app.exception_handler(RequestValidationError)
  async def refuse_body(request, error):
    return answer(Refusal(400, *describe_errors(error.errors())))

  @app.exception_handler(QueueFull)
  async def refuse_more(request, error):
    return answer(Refusal(429, str(error), code='queue_full'), {'Retry-After': '1'})

  @app.exception_handler(Unavailable)
  async def refuse_all(request, error):
    return answer(Refusal(503, str(error)))

  @app.exception_handler(GenerationFailed)
  async def report_failure(request, error):
    return answer(Refusal(500, str(error)))

  @app.exception_handler(HTTPException)
  async def refuse_address(request, error):
    message = f'{request.method} {request.url.path}: {error.detail}'
    return answer(Refusal(error.status_code, message), error.headers)

  @app.exception_handler(Exception)
  async def report_error(request, error):
    return answer(Refusal(500, f'{type(error).__name__}; see the log of the server'))
