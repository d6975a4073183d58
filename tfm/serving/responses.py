"""The bodies of OpenAI's responses."""

import dataclasses
import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

from tfm.serving.generation import Piece


@dataclasses.dataclass(frozen=True)
class Shape:
  """The response to one request for texts, whole or in events of a stream.

  Attributes:
    model: its name.
    id, created: of the response.
  """

  model: str
  id: str
  created: int

  kind = 'text_completion'
  chunk_kind = 'text_completion'

  @classmethod
  def new(cls, model: str) -> 'Shape':
    """A response with an id of its own."""
    return cls(model, f'{cls.kind}-{uuid.uuid4().hex}', int(time.time()))

  def first_chunks(self, count: int) -> list[dict[str, Any]]:
    """The events before the first text."""
    return []

  def chunk(self, piece: Piece) -> dict[str, Any]:
    """An event."""
    return self._wrap(self.chunk_kind, [self._choice(piece.index, piece.text, piece.reason or None)])

  def usage_chunk(self, usage: dict[str, int]) -> dict[str, Any]:
    """The event with the numbers of tokens."""
    return self._wrap(self.chunk_kind, []) | dict(usage=usage)

  def whole(self, texts: Sequence[str], reasons: Sequence[str], usage: dict[str, int]) -> dict[str, Any]:
    """The response that is no stream."""
    choices = [self._whole_choice(i, *pair) for i, pair in enumerate(zip(texts, reasons, strict=True))]
    return self._wrap(self.kind, choices) | dict(usage=usage)

  def _choice(self, index, text, reason):
    return dict(index=index, text=text, logprobs=None, finish_reason=reason)

  _whole_choice = _choice

  def _wrap(self, kind, choices):
    return dict(id=self.id, object=kind, created=self.created, model=self.model, choices=choices)


class ChatShape(Shape):
  """The same for a conversation."""

  kind = 'chat.completion'
  chunk_kind = 'chat.completion.chunk'

  def first_chunks(self, count):
    delta = dict(role='assistant', content='')
    choices = [dict(index=i, delta=delta, logprobs=None, finish_reason=None) for i in range(count)]
    return [self._wrap(self.chunk_kind, [choice]) for choice in choices]

  def _choice(self, index, text, reason):
    return dict(index=index, delta=dict(content=text), logprobs=None, finish_reason=reason)

  def _whole_choice(self, index, text, reason):
    message = dict(role='assistant', content=text)
    return dict(index=index, message=message, logprobs=None, finish_reason=reason)


def count_usage(prompt_tokens: int, new_tokens: int) -> dict[str, int]:
  """The numbers of tokens of a request."""
  total = prompt_tokens + new_tokens
  return dict(prompt_tokens=prompt_tokens, completion_tokens=new_tokens, total_tokens=total)


def format_error(message: str, kind: str, field: str = '', code: str | None = None) -> dict[str, Any]:
  """The body of an error."""
  return dict(error=dict(message=message, type=kind, param=field or None, code=code))


def format_event(body: dict[str, Any]) -> str:
  """An event of a stream (server-sent events)."""
  return f'data: {json.dumps(body, ensure_ascii=False)}\n\n'


END_OF_STREAM = 'data: [DONE]\n\n'
