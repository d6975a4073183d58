"""Conversations as texts, by a Jinja template as published models have it."""

import pathlib
from collections.abc import Sequence

from tfm.errors import importing_extra, parsing
from tfm.serving.requests import Message


with importing_extra('serve'):
  import jinja2
  from jinja2.sandbox import ImmutableSandboxedEnvironment


def load_template(file: str) -> jinja2.Template:
  """The template in a file.

  Raises:
    FileError: if it is none.
  """
  # As in `transformers`, whose templates count on it; a variable that is not known is an error.
  environment = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
  )
  environment.globals['raise_exception'] = raise_exception
  with parsing(file, 'a chat template'):
    return environment.from_string(pathlib.Path(file).read_text(encoding='utf-8'))


def render(template: jinja2.Template, messages: Sequence[Message]) -> str:
  """The text that the model continues with its answer. It begins after the token that begins every text.

  Raises:
    ValueError: if the template refuses the conversation.
  """
  turns = [dict(role=message.role, content=message.text) for message in messages]
  try:
    return template.render(messages=turns, add_generation_prompt=True, bos_token='', tools=None)
  except jinja2.TemplateError as error:
    raise ValueError(f'the chat template refuses the messages: {error}') from None


def raise_exception(message: str) -> None:
  """What templates call to refuse a conversation."""
  raise jinja2.TemplateError(message)
