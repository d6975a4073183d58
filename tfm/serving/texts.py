"""Texts for OpenAI's clients: completions and conversations, whole or streamed."""

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import numpy as np

from tfm.errors import importing_extra, require
from tfm.serving import responses
from tfm.serving.generation import Generation, GenerationFailed
from tfm.serving.metrics import Metrics
from tfm.serving.requests import ChatRequest, CompletionRequest, TextRequest
from tfm.serving.responses import ChatShape, Shape
from tfm.serving.served_model import ServedModel
from tfm.serving.service import Refusal, Service
from tfm.serving.worker import Worker
from tfm.shapes import Int


with importing_extra('serve'):
  from fastapi import FastAPI, Request, Response
  from fastapi.responses import JSONResponse, StreamingResponse


CLIENT_GONE = 499  # nobody reads it


class TextService(Service):
  """Continues the texts of a decoder."""

  def __init__(self, served: ServedModel, worker: Worker, timeout: float):
    super().__init__(served.name)
    self._served, self._worker, self._timeout = served, worker, timeout

  @property
  def failure(self):
    return self._worker.failure

  @property
  def waiting(self):
    return self._worker.waiting

  @property
  def active(self):
    return self._worker.active

  def start(self):
    self._worker.start()

  def stop(self):
    self._worker.stop()

  def add_routes(self, app: FastAPI, metrics: Metrics) -> None:
    self._metrics = metrics

    @app.post('/v1/completions')
    async def complete(body: CompletionRequest, request: Request):
      return await self.respond(request, body, body.prompts, Shape)

    @app.post('/v1/chat/completions')
    async def chat(body: ChatRequest, request: Request):
      body.max_tokens = body.max_completion_tokens or body.max_tokens
      return await self.respond(request, body, [body.messages], ChatShape)

  async def respond(
    self, request: Request, body: TextRequest, prompts: Sequence[Any], kind: type[Shape]
  ) -> Response:
    """The answer to a request: texts, or a stream of them."""
    self.require_model(body.model)
    try:
      generation = self._submit(body, prompts)
    except ValueError as error:
      raise Refusal(400, str(error)) from error
    shape = kind.new(self._served.name)
    if body.stream:
      events = self._stream(generation, shape, body.stream_options.include_usage)
      return StreamingResponse(events, media_type='text/event-stream', headers={'Cache-Control': 'no-store'})
    return await run_while_connected(request, self._collect(generation, shape))

  def _submit(self, body, prompts) -> Generation:
    """Queues the texts of a request."""
    count = len(prompts) * body.n
    require(count > 0, 'prompt is empty; send at least one')
    require(
      count <= self._worker.queue,
      f'{count} texts in one request exceed the queue of {self._worker.queue}; ask for fewer',
    )
    generation = Generation(self._worker, self._served.run.tokenizer, body.stops, self._timeout)
    seed = secrets.randbits(32) if body.seed is None else body.seed
    for prompt, sample in itertools.product(map(self._encode, prompts), range(body.n)):
      generation.add(
        prompt=prompt,
        max_tokens=body.max_tokens or self._served.default_max_tokens(prompt),
        sampling=body.sampling,
        seed=seed,
        sample=sample,
      )
    return generation.submit()

  def _encode(self, prompt) -> Int[np.ndarray, 'T']:
    """The tokens of a text, of tokens, or of the messages of a conversation."""
    if isinstance(prompt, str):
      return self._served.encode(prompt)
    if prompt and not isinstance(prompt[0], int):
      return self._served.encode_chat(prompt)
    return np.array(prompt, np.int32)

  async def _collect(self, generation, shape) -> Response:
    texts = [''] * len(generation.choices)
    try:
      async with self._recording(generation):
        async for piece in generation.pieces():
          texts[piece.index] += piece.text
    except TimeoutError:
      raise Refusal(504, self._late, code='timeout') from None
    usage = responses.count_usage(generation.prompt_tokens, generation.new_tokens)
    return JSONResponse(shape.whole(texts, [choice.reason for choice in generation.choices], usage))

  async def _stream(self, generation, shape, include_usage) -> AsyncIterator[str]:
    try:
      async with self._recording(generation):
        for chunk in shape.first_chunks(len(generation.choices)):
          yield responses.format_event(chunk)
        async for piece in generation.pieces():
          yield responses.format_event(shape.chunk(piece))
    except (TimeoutError, GenerationFailed) as error:  # the status has been sent
      message = self._late if isinstance(error, TimeoutError) else str(error)
      yield responses.format_event(responses.format_error(message, 'server_error'))
      return
    if include_usage:
      usage = responses.count_usage(generation.prompt_tokens, generation.new_tokens)
      yield responses.format_event(shape.usage_chunk(usage))
    yield responses.END_OF_STREAM

  @property
  def _late(self) -> str:
    return f'the request took longer than {self._timeout:g} s (--timeout); ask for fewer tokens, or later'

  @contextlib.asynccontextmanager
  async def _recording(self, generation) -> AsyncIterator[None]:
    """A block in which a generation runs; counts how it ended."""
    outcome = 'cancelled'
    try:
      async with generation:
        yield
      outcome = 'finished'
    except TimeoutError:
      outcome = 'timeout'
      raise
    except GenerationFailed:
      outcome = 'failed'
      raise
    finally:
      g = generation
      self._metrics.record(outcome, g.submitted, g.prompt_tokens, g.new_tokens, g.first_token)


async def run_while_connected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
  """The result of `work`, which is cancelled if the client leaves."""

  async def wait_for_end():
    while (await request.receive())['type'] != 'http.disconnect':
      pass

  tasks = [asyncio.ensure_future(work), asyncio.ensure_future(wait_for_end())]
  try:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return tasks[0].result() if tasks[0].done() else Response(status_code=CLIENT_GONE)
  finally:
    for task in tasks:
      task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
