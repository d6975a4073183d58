"""What a field of a config.json is in our config, in both directions."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tfm.errors import suggest
from tfm.spec import parse


MISSING = object()

# Fields that change neither parameters nor numbers: how to train, to draw, to store, to call; names of classes.
HARMLESS = frozenset(
  """
  architectures model_type transformers_version _name_or_path _commit_hash auto_map torch_dtype dtype name_or_path
  use_cache _num_labels initializer_range init_std initializer_factor initializer_cutoff_factor id2label label2id num_labels
  problem_type task_specific_params finetuning_task tokenizer_class prefix return_dict return_dict_in_generate
  output_past gradient_checkpointing chunk_size_feed_forward output_scores max_length min_length do_sample
  early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty
  length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences
  remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens forced_bos_token_id
  forced_eos_token_id sep_token_id cls_token_id unk_token_id mask_token_id bos_token_id pretraining_tp
  summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj classifier_dropout
  _attn_implementation attn_implementation _flash_attn_2_enabled
""".split()
)

# Fields of every family that are understood at these values alone.
ONLY = dict(
  torchscript=False,
  use_bfloat16=False,
  pruned_heads={},
  tie_encoder_decoder=False,
  add_cross_attention=False,
  cross_attention_hidden_size=None,
  quantization_config=None,
  is_decoder=False,
  is_encoder_decoder=False,
  use_return_dict=True,
  output_attentions=False,
  output_hidden_states=False,
)


class Given:
  """The fields of a config.json, and which of them were read."""

  def __init__(self, fields: Mapping[str, Any]):
    self.fields, self.read = dict(fields), set()

  def take(self, name: str, default: Any = MISSING) -> Any:
    """A field, or the default where it is not there.

    Raises:
      ValueError: if it is not there and has no default.
    """
    self.read.add(name)
    value = self.fields.get(name, default)
    if value is MISSING:
      raise ValueError(f'config.json has no {name!r}, which the family needs')
    # How `transformers` 5 writes what JSON has no word for.
    return float(value['__float__']) if isinstance(value, dict) and [*value] == ['__float__'] else value

  def __contains__(self, name: str) -> bool:
    return name in self.fields

  def refuse_others(self) -> None:
    """Raises ValueError for a field that nobody read and that is not known to be harmless."""
    for name, value in self.fields.items():
      if name in self.read or name in HARMLESS or (name in ONLY and value == ONLY[name]):
        continue
      known = (
        f'; {ONLY[name]!r} alone is understood' if name in ONLY else ', and its family knows no such field'
      )
      raise ValueError(f'config.json: {name}={value!r} is not understood{known}')


class Field(abc.ABC):
  """Some fields of a config.json and what they are here."""

  @abc.abstractmethod
  def read(self, given: Given, config: dict[str, Any]) -> None:
    """Puts what is given into a flat config.

    Raises:
      ValueError: for what cannot be honoured.
    """

  @abc.abstractmethod
  def write(self, config: Mapping[str, Any], given: dict[str, Any]) -> None:
    """Puts what a flat config says into the fields of a config.json.

    Raises:
      ValueError: for what the family cannot say.
    """


@dataclasses.dataclass(frozen=True)
class Form:
  """How the value of one field becomes the value of another, and back."""

  read: Callable[[Any], Any]
  write: Callable[[Any], Any]


def _one_of(known: Mapping[Any, Any], value: Any) -> Any:
  if value not in known:
    raise ValueError(f'{value!r} has no published name here; known: {", ".join(map(repr, known))}')
  return known[value]


SAME = Form(lambda value: value, lambda value: value)


def names(given: Mapping[Any, Any] = {}, /, **ours: Any) -> Form:
  """Published name → ours; what is no name, such as True, in a dict."""
  ours = {**given, **ours}

  def read(value):
    if value not in ours:
      raise ValueError(f'{value!r} is not understood; {suggest(str(value), map(str, ours))}')
    return ours[value]

  def write(value):
    for name, own in ours.items():
      if own == value:
        return name
    raise ValueError(
      f'{value!r} has no published name here; known: {", ".join(dict.fromkeys(ours.values()))}'
    )

  return Form(read, write)


def spelled(name: str, kwargs: Mapping[str, Any]) -> str:
  """The spec of a name and its arguments."""
  words = ', '.join(f'{key}={value!r}' for key, value in kwargs.items())
  return f'{name}({words})' if words else name


def argument(name: str, of: str, default: Any = MISSING, **fixed: Any) -> Form:
  """A value as one argument of a spec: argument('layernorm', 'epsilon') reads 1e-5 as 'layernorm(epsilon=1e-05)'.

  Args:
    default: of the argument, where a spec leaves it out; fixed: arguments that the family always has, which a spec that
      is written may leave to the rest of the config.
  """

  def read(value):
    return spelled(name, {of: value} | fixed)

  def write(text):
    call = parse(text)
    kwargs = dict(zip((of,), call.args)) | dict(call.kwargs)
    value = kwargs.pop(of, default)
    others = any(key not in fixed or item != fixed[key] for key, item in kwargs.items())
    if call.name != name or len(call.args) > 1 or others or value is MISSING:
      raise ValueError(
        f'{text!r} is not said by the family; {read(value if value is not MISSING else "…")!r} would be'
      )
    return value

  return Form(read, write)


@dataclasses.dataclass(frozen=True)
class Same(Field):
  """A field that is one of ours.

  Attributes:
    name: in config.json; path: in our config; default: its value where config.json does not say.
    older: other names of it, in older files.
  """

  name: str
  path: str
  form: Form = SAME
  default: Any = MISSING
  older: tuple[str, ...] = ()

  def read(self, given, config):
    name = next((name for name in self.older if name in given), self.name)
    value = given.take(name, self.default)
    for other in (self.name, *self.older):
      if (again := given.take(other, value)) != value:
        raise ValueError(f'config.json: {other}={again!r} is what {name}={value!r} is; say one of them')
    try:
      config[self.path] = self.form.read(value)
    except ValueError as error:
      raise ValueError(f'config.json: {self.name}={error}') from None

  def write(self, config, given):
    try:
      given[self.name] = self.form.write(config[self.path])
    except ValueError as error:
      raise ValueError(f'config.{self.path}={error}') from None


@dataclasses.dataclass(frozen=True)
class Argument(Field):
  """A field that is one argument of a spec of ours, which a field before this one names.

  Attributes:
    name: in config.json; path: of the spec in our config; argument: of the spec.
    default: where config.json does not say; usual: the argument's where the spec does not say.
  """

  name: str
  path: str
  argument: str
  form: Form = SAME
  default: Any = MISSING
  usual: Any = MISSING

  def read(self, given, config):
    value = given.take(self.name, self.default)
    try:
      value = self.form.read(value)
    except ValueError as error:
      raise ValueError(f'config.json: {self.name}={error}') from None
    call = parse(config[self.path])
    if value != self.usual:
      config[self.path] = spelled(call.name, dict(call.kwargs) | {self.argument: value})

  def write(self, config, given):
    value = parse(config[self.path]).kwargs.get(self.argument, self.usual)
    if value is MISSING:
      raise ValueError(
        f'config.{self.path}={config[self.path]!r} does not say {self.argument!r}, which the family needs'
      )
    try:
      given[self.name] = self.form.write(value)
    except ValueError as error:
      raise ValueError(f'config.{self.path}={config[self.path]!r}: {self.argument}={error}') from None


@dataclasses.dataclass(frozen=True)
class Always(Field):
  """A field of ours that is the same in the whole family."""

  path: str
  value: Any

  def read(self, given, config):
    config[self.path] = self.value

  def write(self, config, given):
    pass  # what a written config.json says is read again, and must be the same


@dataclasses.dataclass(frozen=True)
class Only(Field):
  """Fields of config.json that are understood at one value alone, which is theirs where they are not there."""

  values: Mapping[str, Any]

  def __init__(self, **values: Any):
    object.__setattr__(self, 'values', values)

  def read(self, given, config):
    for name, value in self.values.items():
      if (found := given.take(name, value)) != value:
        raise ValueError(f'config.json: {name}={found!r} is not understood; {value!r} alone is')

  def write(self, config, given):
    given.update(self.values)


@dataclasses.dataclass(frozen=True)
class Either(Field):
  """A field of config.json that is understood at several values, which mean the same; the first is written."""

  name: str
  values: tuple[Any, ...]

  def read(self, given, config):
    if (found := given.take(self.name, self.values[0])) not in self.values:
      raise ValueError(
        f'config.json: {self.name}={found!r} is not understood; known: {", ".join(map(str, self.values))}'
      )

  def write(self, config, given):
    given[self.name] = self.values[0]


@dataclasses.dataclass(frozen=True)
class Again(Field):
  """A field that some files have besides another, and that must say what that one says.

  Attributes:
    name: of it; of: of the other; default: the other's value where config.json does not say.
  """

  name: str
  of: str
  default: Any

  def read(self, given, config):
    wanted = given.take(self.of, self.default)
    if (value := given.take(self.name, None)) not in (None, wanted):
      raise ValueError(f'config.json: {self.name}={value!r} is not understood beside {self.of}={wanted!r}')

  def write(self, config, given):
    pass


@dataclasses.dataclass(frozen=True)
class Ignored(Field):
  """Fields of config.json that change nothing, or nothing but training, in this family."""

  names: tuple[str, ...]

  def __init__(self, *names: str):
    object.__setattr__(self, 'names', names)

  def read(self, given, config):
    for name in self.names:
      given.take(name, None)

  def write(self, config, given):
    pass


@dataclasses.dataclass(frozen=True)
class Inside(Field):
  """Fields that lie in one of config.json, which is a table itself.

  Attributes:
    name: of the table; fields: that it holds.
  """

  name: str
  fields: tuple[Field, ...]

  def read(self, given, config):
    inner = Given(given.take(self.name, None) or {})
    try:
      for field in self.fields:
        field.read(inner, config)
      inner.refuse_others()
    except ValueError as error:
      raise ValueError(f'{error} (in {self.name})') from None

  def write(self, config, given):
    inner = given.setdefault(self.name, {})
    for field in self.fields:
      field.write(config, inner)


@dataclasses.dataclass(frozen=True)
class Both(Field):
  """Fields that depend on each other.

  Attributes:
    reading: given → path → value; writing: config → name → value.
  """

  reading: Callable[[Given], Mapping[str, Any]]
  writing: Callable[[Mapping[str, Any]], Mapping[str, Any]]

  def read(self, given, config):
    config.update(self.reading(given))

  def write(self, config, given):
    given.update(self.writing(config))


def learned(name: str, default: Any = MISSING, beside: int = 0, path: str = 'model.position') -> Both:
  """Learned positions, of which config.json counts the rows; the sequences are as long.

  Args:
    beside: rows of the published table that stand before position 0 and are none of ours, counted there or not as
      `name` counts.
  """
  form = argument('learned', 'rows')

  def writing(config):
    try:
      rows = form.write(config[path]) if config[path] != 'learned' else config['data.length']
    except ValueError as error:
      raise ValueError(f'config.{path}={error}') from None
    return {name: rows + beside}

  def reading(given):
    rows = given.take(name, default) - beside
    return {path: form.read(rows), 'data.length': rows}

  return Both(reading, writing)


# A cap on logits, which may not be there.
CAP = Form(lambda value: float(value or 0), lambda value: value or None)
# Whether the projections of attention have biases, as the letters of a softmax mixer.
QKVO = Form(
  lambda value: 'qkvo' if value else '', lambda letters: _one_of({'qkvo': True, '': False}, letters)
)


def classes(output: str) -> tuple[Both, ...]:
  """How many classes there are, where the output tells classes. Their names are not kept."""

  def reading(given):
    names = given.take('id2label', None)
    return {'classes': len(names) if names else given.take('num_labels', 2)}

  def writing(config):
    names = {str(i): f'LABEL_{i}' for i in range(config['classes'])}
    return dict(id2label=names, label2id={name: int(i) for i, name in names.items()})

  return (Both(reading, writing),) if output.startswith('classes') else ()


# What published configs call the activation of a feed-forward layer; of several names the first is written.
PLAIN = names(
  gelu_new='gelu_tanh',
  gelu_pytorch_tanh='gelu_tanh',
  gelu_fast='gelu_tanh',
  gelu='gelu',
  relu='relu',
  silu='silu',
  swish='silu',
  quick_gelu='quick_gelu',
)
# And of one with a gate.
GATED = names(
  silu='swiglu',
  swish='swiglu',
  gelu='geglu',
  gelu_pytorch_tanh='geglu_tanh',
  gelu_new='geglu_tanh',
  relu='reglu',
)
