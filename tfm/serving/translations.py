"""Texts for encoder-decoders: translations in the shape of OpenAI's completions."""

from collections.abc import Sequence
from typing import Annotated

from tfm.decoding import loop
from tfm.decoding.translate import translate
from tfm.decoding.unroll_layers import unroll_layers
from tfm.errors import importing_extra
from tfm.hf.loaded_model import LoadedModel
from tfm.parallel import sharding
from tfm.serving import responses
from tfm.serving.calls import CallService
from tfm.serving.engine import STOP
from tfm.serving.metrics import Metrics
from tfm.serving.requests import Body, require_text
from tfm.serving.service import Refusal


with importing_extra('serve'):
  from fastapi import FastAPI, Request
  from pydantic import Field


class TranslationRequest(Body):
  """/v1/completions of a translator: the prompts are sources. It searches, so that nothing is sampled."""

  model: str
  prompt: str | Annotated[list[str], Field(min_length=1)]
  max_tokens: Annotated[int, Field(ge=1)] | None = None
  user: str = ''

  @property
  def prompts(self) -> list[str]:
    """All of them."""
    return [self.prompt] if isinstance(self.prompt, str) else self.prompt


class TranslationService(CallService):
  """Translates the sources of one request together, by beam search with config.decoding."""

  def __init__(self, name: str, run: LoadedModel, queue: int, timeout: float):
    super().__init__(name, queue, timeout)
    with sharding.context(run.mesh, run.rules):
      self._run, self._model = run, unroll_layers(run.model, run.params)

  def add_routes(self, app: FastAPI, metrics: Metrics) -> None:
    @app.post('/v1/completions')
    async def complete(body: TranslationRequest, request: Request):
      self.require_model(body.model)
      reader = self._run.source_tokenizer or self._run.tokenizer
      try:
        sources = [reader.source_ids(require_text(text)) for text in body.prompts]
        prompt = [self._run.tokenizer.target_prompt_ids()] * len(sources)
        loop.validate_inputs(self._run.model, prompt, body.max_tokens or 1, sources)
      except ValueError as error:
        raise Refusal(400, str(error), 'prompt') from error
      tokens = sum(map(len, sources))
      texts = await self.call(metrics, tokens, self.translate, body.prompts, body.max_tokens)
      usage = responses.count_usage(tokens, sum(len(self._run.tokenizer.encode(text)) for text in texts))
      return responses.Shape.new(self.name).whole(texts, [STOP] * len(texts), usage)

  def translate(self, texts: Sequence[str], max_tokens: int | None) -> list[str]:
    """The best translation of each text."""
    with sharding.context(self._run.mesh, self._run.rules):
      results = translate(
        *self._model,
        self._run.tokenizer,
        texts,
        settings=self._run.experiment.beam_search,
        max_extra_tokens=self._run.config.decoding.max_extra_tokens,
        max_tokens=max_tokens,
        source_tokenizer=self._run.source_tokenizer,
      )
      translations = dict(results)
    return [translations[i][0].text for i in range(len(texts))]
