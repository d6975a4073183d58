"""Converters between the value of one config.json field and the value of one config field."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tfm.errors import suggest
from tfm.spec import parse


MISSING = object()


@dataclasses.dataclass(frozen=True)
class Converter:
  """Converts the config.json value to the config value (`read`), and back (`write`)."""

  read: Callable[[Any], Any]
  write: Callable[[Any], Any]


IDENTITY = Converter(lambda value: value, lambda value: value)


def value_map(pairs: Mapping[Any, Any] = {}, /, **more: Any) -> Converter:
  """config.json value → config value; values that are not identifiers, such as True, come in `pairs`."""
  config_values = {**pairs, **more}

  def read(value):
    if value not in config_values:
      raise ValueError(f'{value!r} is not supported; {suggest(str(value), map(str, config_values))}')
    return config_values[value]

  def write(value):
    for hf_value, config_value in config_values.items():
      if config_value == value:
        return hf_value
    raise ValueError(
      f'{value!r} has no config.json value; supported: {", ".join(dict.fromkeys(config_values.values()))}'
    )

  return Converter(read, write)


def format_spec(name: str, kwargs: Mapping[str, Any]) -> str:
  """The spec string of a name and its arguments: `name(key=value, …)`."""
  arguments = ', '.join(f'{key}={value!r}' for key, value in kwargs.items())
  return f'{name}({arguments})' if arguments else name


def spec_argument(name: str, argument: str, default: Any = MISSING, **fixed: Any) -> Converter:
  """A value as one argument of a spec: spec_argument('layernorm', 'epsilon') reads 1e-5 as
  'layernorm(epsilon=1e-05)'.

  Args:
    default: of the argument, if a spec omits it.
    fixed: arguments that the family always has; a spec that is written may omit them.
  """

  def read(value):
    return format_spec(name, {argument: value} | fixed)

  def write(text):
    call = parse(text)
    kwargs = dict(zip((argument,), call.args)) | dict(call.kwargs)
    value = kwargs.pop(argument, default)
    has_others = any(key not in fixed or item != fixed[key] for key, item in kwargs.items())
    if call.name != name or len(call.args) > 1 or has_others or value is MISSING:
      raise ValueError(
        f'{text!r} is not supported by the family; use {read(value if value is not MISSING else "…")!r}'
      )
    return value

  return Converter(read, write)


def _letters_to_bool(letters: str) -> bool:
  supported = {'qkvo': True, '': False}
  if letters not in supported:
    raise ValueError(f'{letters!r} has no config.json value; supported: {", ".join(map(repr, supported))}')
  return supported[letters]


# A soft cap on logits, or None.
SOFT_CAP = Converter(lambda value: float(value or 0), lambda value: value or None)

# Whether the projections of attention have biases, as the letters of a softmax mixer.
ALL_BIASES = Converter(lambda value: 'qkvo' if value else '', _letters_to_bool)

# The activation of a feed-forward layer. Of several config.json values with one meaning, the first is
# written.
ACTIVATIONS = value_map(
  gelu_new='gelu_tanh',
  gelu_pytorch_tanh='gelu_tanh',
  gelu_fast='gelu_tanh',
  gelu='gelu',
  relu='relu',
  relu2='relu_squared',
  silu='silu',
  swish='silu',
  quick_gelu='quick_gelu',
)
# The same for a gated layer.
GATED_ACTIVATIONS = value_map(
  silu='swiglu',
  swish='swiglu',
  gelu='geglu',
  gelu_pytorch_tanh='geglu_tanh',
  gelu_new='geglu_tanh',
  relu='reglu',
)
