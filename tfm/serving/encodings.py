"""Texts for encoders: embeddings in OpenAI's shape, and classes."""

import base64
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tfm.decoding import loop
from tfm.errors import importing_extra, require
from tfm.hf.forward import FORWARD, Inputs
from tfm.hf.loaded_model import LoadedModel
from tfm.parallel import host_arrays, sharding
from tfm.serving.calls import CallService
from tfm.serving.metrics import Metrics
from tfm.serving.requests import Body, require_text
from tfm.serving.service import Refusal
from tfm.shapes import Float, Int


with importing_extra('serve'):
  from fastapi import FastAPI, Request
  from pydantic import Field


MAX_TEXTS = 2048  # of one request, as OpenAI's
ROWS = 32  # read at once


class EncodingRequest(Body):
  """Texts to encode."""

  model: str
  input: str | Annotated[list[str], Field(min_length=1, max_length=MAX_TEXTS)]
  user: str = ''

  @property
  def texts(self) -> list[str]:
    """All of them."""
    return [self.input] if isinstance(self.input, str) else self.input


class EmbeddingRequest(EncodingRequest):
  """/v1/embeddings; base64 is of float32, little-endian."""

  encoding_format: Literal['float', 'base64'] = 'float'


class EncodingService(CallService):
  """Embeds the texts of an encoder, and classifies them if it was trained to."""

  def __init__(self, name: str, run: LoadedModel, queue: int, timeout: float):
    super().__init__(name, queue, timeout)
    self._run = run

  def add_routes(self, app: FastAPI, metrics: Metrics) -> None:
    @app.post('/v1/embeddings')
    async def embed(body: EmbeddingRequest, request: Request):
      rows, result = await self._compute(metrics, body, embed_rows)
      format_one = encode_base64 if body.encoding_format == 'base64' else np.ndarray.tolist
      data = [dict(object='embedding', index=i, embedding=format_one(x)) for i, x in enumerate(result)]
      return self._response(rows, data)

    if self._run.output == 'classes':

      @app.post('/classify')
      async def classify(body: EncodingRequest, request: Request):
        rows, result = await self._compute(metrics, body, classify_rows)
        return self._response(rows, [describe_classes(i, x) for i, x in enumerate(result)])

  async def _compute(self, metrics, body, function):
    self.require_model(body.model)
    try:
      rows = [self._run.encode(require_text(text)) for text in body.texts]
      for limit_of, limit in loop.list_position_limits(self._run.model.positions):
        longest = max(map(len, rows))
        sentence = f'a text of {longest} tokens exceeds the {limit} positions of {limit_of}; shorten it'
        require(longest <= limit, sentence)
    except ValueError as error:
      raise Refusal(400, str(error), 'input') from error
    return rows, await self.call(metrics, sum(map(len, rows)), encode_batches, self._run, rows, function)

  def _response(self, rows, data):
    tokens = sum(map(len, rows))
    usage = dict(prompt_tokens=tokens, total_tokens=tokens)
    return dict(object='list', data=data, model=self.name, usage=usage)


def encode_batches(
  run: LoadedModel, rows: Sequence[Int[np.ndarray, 'T']], function: Callable
) -> Float[np.ndarray, 'N F']:
  """What a function computes of each row, `ROWS` of similar length at a time, in few shapes."""
  order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
  limits = [limit for _, limit in loop.list_position_limits(run.model.positions)]
  results = {}
  with sharding.context(run.mesh, run.rules):
    for start in range(0, len(order), ROWS):
      part = order[start : start + ROWS]
      width = min([loop.round_up(len(rows[part[-1]]), 16), *limits])
      count = loop.round_up_rows(len(part))
      ids, mask = np.full((count, width), run.pad_id, np.int32), np.zeros((count, width), np.int32)
      # The first token of rows that are not there: a mean needs one.
      ids[len(part) :, 0], mask[len(part) :, 0] = rows[part[0]][0], 1
      for row, row_mask, i in zip(ids, mask, part):
        row[: len(rows[i])], row_mask[: len(rows[i])] = rows[i], 1
      results |= zip(part, function(run, ids, mask))
  return np.array([results[i] for i in range(len(rows))])


def embed_rows(
  run: LoadedModel, ids: Int[np.ndarray, 'B T'], mask: Int[np.ndarray, 'B T']
) -> Float[np.ndarray, 'B D']:
  """The mean of the last hidden states of each row's tokens (Reimers & Gurevych 2019, §3), scaled to length
  1."""
  context = run.build_context(ids, mask)
  model = run.model_for_length(ids.shape[1])
  hidden = FORWARD['encoder'](model, run.params, 'features', Inputs(jnp.asarray(ids), context))
  mean = np.einsum('btd,bt->bd', host_arrays.fetch(hidden), mask)
  return mean / np.linalg.norm(mean, axis=-1, keepdims=True).clip(1e-12)


def classify_rows(
  run: LoadedModel, ids: Int[np.ndarray, 'B T'], mask: Int[np.ndarray, 'B T']
) -> Float[np.ndarray, 'B C']:
  """The probability of each class of each row."""
  return np.asarray(jax.nn.softmax(run.logits(ids, mask)))


def describe_classes(index: int, probabilities: Float[np.ndarray, 'C']) -> dict[str, Any]:
  """The classes of a text; numbers, since a checkpoint has no names."""
  values = probabilities.tolist()
  return dict(index=index, label=int(probabilities.argmax()), probs=values, num_classes=len(values))


def encode_base64(vector: Float[np.ndarray, 'D']) -> str:
  """The bytes of a vector."""
  return base64.b64encode(vector.astype('<f4').tobytes()).decode()
