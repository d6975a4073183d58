"""Conversations as texts, by a Jinja template as published models have it."""

import datetime
import json
import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tfm.data.tokenizers.protocol import Tokenizer
from tfm.errors import importing_extra, parsing
from tfm.serving.requests import Message


with importing_extra('serve'):
  import jinja2
  from jinja2.ext import Extension, loopcontrols
  from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
  """{% generation %}…{% endgeneration %} marks, for training, what the assistant says; it changes no text."""

  tags = {'generation'}

  def parse(self, parser):
    next(parser.stream)
    return parser.parse_statements(('name:endgeneration',), drop_needle=True)


def load_template(file: str) -> jinja2.Template:
  """The template in a file.

  Raises:
    FileError: if it is none.
  """
  # As in `transformers`, whose templates count on it: what a message lacks is false, and prints nothing.
  environment = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
  )
  environment.filters['tojson'] = format_json
  environment.globals |= dict(raise_exception=raise_exception, strftime_now=strftime_now)
  with parsing(file, 'a chat template'):
    return environment.from_string(pathlib.Path(file).read_text(encoding='utf-8'))


def render(
  template: jinja2.Template, messages: Sequence[Message], tokenizer: Tokenizer
) -> list[tuple[str, bool]]:
  """The text that the model continues with its answer, in pieces: (text, whether its special tokens count).

  Those of the template do, and those that a message spells do not, also if it spells one together with the
  template. The text begins after the token that begins every text.

  Raises:
    ValueError: if the template refuses the conversation.
  """
  specials = tokenizer.control_tokens
  private = assign_private(
    set(''.join(specials)), ''.join(message.role + message.text for message in messages)
  )
  turns = [
    dict(
      role=conceal_whole(message.role, specials, private), content=conceal(message.text, specials, private)
    )
    for message in messages
  ]
  settings = dict(add_generation_prompt=True, bos_token='', tools=None)
  settings |= {'eos_token': name for name, token in specials.items() if token == tokenizer.eos_id}
  try:
    text = template.render(messages=turns, **settings)
  except Exception as error:  # a template is another's program
    raise ValueError(f'the chat template refuses the messages: {error}') from None
  parts = re.split(f'([{"".join(private.values())}]+)', text) if private else [text]
  public = str.maketrans({x: c for c, x in private.items()})
  return [(part.translate(public), i % 2 == 0) for i, part in enumerate(parts) if part]


def assign_private(characters: set[str], text: str) -> dict[str, str]:
  """Character → a private one of Unicode, which the text does not have."""
  free = (chr(i) for i in range(0xF0000, 0xFFFFE) if chr(i) not in text)
  return dict(zip(sorted(characters), free))


def conceal_whole(text: str, specials: Collection[str], private: Mapping[str, str]) -> str:
  """The text with private characters in the place of every special token in it."""
  if not specials:
    return text
  longest_first = sorted(specials, key=len, reverse=True)
  table = str.maketrans(private)
  return re.sub('|'.join(map(re.escape, longest_first)), lambda match: match[0].translate(table), text)


def conceal(text: str, specials: Collection[str], private: Mapping[str, str]) -> str:
  """`conceal_whole`, and with private characters where what stands before or after the text could make a
  special token of its begin or end; a template may strip it first.
  """
  text = conceal_whole(text, specials, private)
  core, table = text.strip(), str.maketrans(private)
  if any(core in special for special in specials):
    return text.translate(table)
  first, last = len(text) - len(text.lstrip()), len(text.rstrip()) - 1
  splits = [(special[:i], special[i:]) for special in specials for i in range(1, len(special))]
  edges = {first} if any(core.startswith(end) for _, end in splits) else set()
  edges |= {last} if any(core.endswith(begin) for begin, _ in splits) else set()
  return ''.join(c.translate(table) if i in edges else c for i, c in enumerate(text))


def format_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
  """A value as JSON; Jinja's own filter would escape it for HTML."""
  return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def strftime_now(format: str) -> str:
  """The local time, which some templates tell the model."""
  return datetime.datetime.now().strftime(format)


def raise_exception(message: str) -> None:
  """What templates call to refuse a conversation."""
  raise jinja2.TemplateError(message)
