"""What clients may ask for: the bodies of OpenAI's requests. What is not served is refused in a sentence."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from tfm.decoding.sampling import Sampling
from tfm.errors import importing_extra, require


with importing_extra('serve'):
  from pydantic import BaseModel, ConfigDict, Field, model_validator


Token = Annotated[int, Field(ge=0, lt=2**31)]
# Fields of OpenAI's that are not served, and the values with which they ask for nothing.
NEUTRAL = {
  'best_of': (1,),
  'echo': (False,),
  'frequency_penalty': (0,),
  'logit_bias': ({},),
  'logprobs': (False,),
  'presence_penalty': (0,),
  'suffix': ('',),
  'tools': ([],),
}


class Body(BaseModel):
  """A body in which null is the default, and an unknown field an error."""

  model_config = ConfigDict(extra='forbid', strict=True, allow_inf_nan=False)

  @model_validator(mode='before')
  @classmethod
  def drop_defaults(cls, body: Any) -> Any:
    """The body without fields that ask for nothing."""
    if not isinstance(body, Mapping):
      return body

    def is_neutral(name, value):
      # 0 and False are equal, but one asks for the log-probability of a token and the other for none.
      return any(value == x and isinstance(value, bool) == isinstance(x, bool) for x in NEUTRAL.get(name, ()))

    return {name: value for name, value in body.items() if value is not None and not is_neutral(name, value)}


class StreamOptions(Body):
  """Of a stream: whether its last event has the numbers of tokens."""

  include_usage: bool = False


class TextRequest(Body):
  """What the requests for texts have in common.

  Attributes:
    model: the name of the served model.
    max_tokens: None: as of `tfm generate`, or as many as there is room for.
    n: texts per prompt.
    seed: of sampling; None: another one for every request.
    stop: texts before which a text ends.
    user: of the client; not used.
    top_k, min_p, repetition_penalty: `tfm.decoding.sampling.Sampling`; OpenAI has none of these.
  """

  model: str
  max_tokens: Annotated[int, Field(ge=1)] | None = None
  temperature: Annotated[float, Field(ge=0)] = 1.0
  top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
  top_k: Annotated[int, Field(ge=0, lt=2**31)] = 0
  min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
  repetition_penalty: Annotated[float, Field(gt=0)] = 1.0
  n: Annotated[int, Field(ge=1)] = 1
  seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None
  stop: str | list[str] = []
  stream: bool = False
  stream_options: StreamOptions = StreamOptions()
  user: str = ''

  @property
  def sampling(self) -> Sampling:
    """Its settings."""
    return Sampling(self.temperature, self.top_k, self.top_p, self.min_p, self.repetition_penalty)

  @property
  def stops(self) -> list[str]:
    """The stop sequences that are not empty."""
    return [stop for stop in ([self.stop] if isinstance(self.stop, str) else self.stop) if stop]


class CompletionRequest(TextRequest):
  """/v1/completions: prompts are texts or tokens."""

  prompt: str | list[str] | list[Token] | list[list[Token]]

  @property
  def prompts(self) -> list[str] | list[list[int]]:
    """All of them."""
    is_one = isinstance(self.prompt, str) or bool(self.prompt) and isinstance(self.prompt[0], int)
    return [self.prompt] if is_one else self.prompt


class TextPart(Body):
  """A part of a message."""

  type: Literal['text']
  text: str


class Message(Body):
  """A turn of a conversation."""

  role: str
  content: str | list[TextPart]
  name: str = ''

  @property
  def text(self) -> str:
    """Its content."""
    return self.content if isinstance(self.content, str) else ''.join(part.text for part in self.content)


class ChatRequest(TextRequest):
  """/v1/chat/completions; `max_completion_tokens` is OpenAI's newer name of `max_tokens`."""

  messages: Annotated[list[Message], Field(min_length=1)]
  max_completion_tokens: Annotated[int, Field(ge=1)] | None = None


def require_text(text: str) -> str:
  """The text.

  Raises:
    ValueError: if it is not Unicode: JSON can write half a pair of surrogates.
  """
  require(not any('\ud800' <= c <= '\udfff' for c in text), 'the text has a lone surrogate; send UTF-8')
  return text


def describe_errors(errors: list[dict]) -> tuple[str, str]:
  """(sentence, field) of the first error of a body.

  Args:
    errors: of pydantic.
  """
  # Of a union each member has an error: that of the member that was meant is deepest, and no wrong type.
  error = max(errors, key=lambda error: (len(error['loc']), not error['type'].endswith('_type')))
  field = '.'.join(str(part) for part in error['loc'] if part != 'body' and not is_type(part))
  match error['type']:
    case 'json_invalid':
      return f'the body is no JSON: {error["ctx"]["error"]}', ''
    case 'extra_forbidden':
      return f'{field} is not served; remove it', field
    case 'missing':
      return f'{field or "a body"} is missing; add it', field
  value = repr(error['input'])
  shown = value if len(value) <= 60 else f'{value[:60]}…'
  return f'{field or "the body"}={shown}: {error["msg"][0].lower()}{error["msg"][1:]}', field


def is_type(part: str | int) -> bool:
  """Whether a part of a place is the name of a member of a union, such as 'list[str]'."""
  return isinstance(part, str) and (part in ('str', 'int') or '[' in part)
