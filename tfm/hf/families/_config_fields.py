"""The fields of a config.json and the fields of our config, mapped in both directions."""

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tfm.hf.families._field_converters import IDENTITY, MISSING, Converter, format_spec, spec_argument
from tfm.spec import parse, shorten


# Fields that change neither parameters nor outputs: training, sampling, storage, call options, class names.
IRRELEVANT_FIELDS = frozenset(
  """
  architectures model_type transformers_version _name_or_path _commit_hash auto_map torch_dtype dtype
  name_or_path use_cache _num_labels initializer_range init_std initializer_factor initializer_cutoff_factor
  id2label label2id num_labels problem_type task_specific_params finetuning_task tokenizer_class prefix
  return_dict return_dict_in_generate output_past gradient_checkpointing chunk_size_feed_forward
  output_scores max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty
  temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
  encoder_no_repeat_ngram_size bad_words_ids num_return_sequences remove_invalid_values
  exponential_decay_length_penalty suppress_tokens begin_suppress_tokens forced_bos_token_id
  forced_eos_token_id sep_token_id cls_token_id unk_token_id mask_token_id bos_token_id pretraining_tp
  summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
  classifier_dropout _attn_implementation attn_implementation _flash_attn_2_enabled
""".split()
)

# Fields of every family that are supported at one value only.
DEFAULT_ONLY_FIELDS = dict(
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


# The types of fields whose default does not show them, or that have several.
FIELD_TYPES = dict(
  architectures=(list,),
  attention_window=(int, list),
  attn_config=(dict,),
  decoder_start_token_id=(int,),
  eos_token_id=(int, list),
  id2label=(dict,),
  image_size=(int, list),
  layer_types=(list,),
  original_max_position_embeddings=(int,),
  pad_token_id=(int,),
  partial_rotary_factor=(float,),
  patch_size=(int, list),
  pos_att_type=(str, list),
  rope_parameters=(dict,),
  rope_scaling=(dict,),
  rope_theta=(float,),
  rotary_emb_base=(float,),
  rotary_pct=(float,),
  time_step_limit=(list,),
  time_step_rank=(int, str),
)
# What a JSON value of a type is in Python. Whether a number must be whole, the field of our config decides.
PYTHON_TYPES = {int: (int, float), float: (int, float), list: (list, tuple)}


class HfConfig:
  """The fields of a config.json; records which of them were read."""

  def __init__(self, fields: Mapping[str, Any]):
    self.fields, self.read_names, self._last_read = dict(fields), set(), []

  def get(self, name: str, default: Any = MISSING) -> Any:
    """The value of a field, or the default if the field is missing. Its type is one of `FIELD_TYPES` or that
    of the default; None always passes, because in files it stands for a default.

    Raises:
      ValueError: if the field is missing and has no default, or its value is of another type.
    """
    self.read_names.add(name)
    self._last_read.append(name)
    value = self.fields.get(name, default)
    if value is MISSING:
      raise ValueError(f'config.json has no {name!r}, which the family requires')
    # `transformers` 5 writes numbers that JSON lacks, such as infinity, in this form.
    if isinstance(value, dict) and [*value] == ['__float__']:
      value = float(value['__float__'])
    types = FIELD_TYPES.get(name) or (() if default in (None, MISSING) else (type(default),))
    require_type(name, value, *types)
    return value

  def __contains__(self, name: str) -> bool:
    return name in self.fields

  @contextlib.contextmanager
  def converting(self) -> Iterator[None]:
    """The boundary around the conversion of a field, whose values may be anything.

    Raises:
      ValueError: whatever the conversion raises, with the values that it read.
    """
    self._last_read.clear()
    try:
      yield
    except ValueError:
      raise
    except Exception as error:
      read = ', '.join(f'{name}={shorten(self.fields[name])}' for name in self._last_read if name in self)
      raise ValueError(f'config.json: {read} is not supported ({type(error).__name__}: {error})') from error

  def reject_unread(self) -> None:
    """Raises ValueError for a field that was not read and may change the model."""
    for name, value in self.fields.items():
      if name in self.read_names or name in IRRELEVANT_FIELDS:
        continue
      if name in DEFAULT_ONLY_FIELDS:
        if value == DEFAULT_ONLY_FIELDS[name]:
          continue
        remedy = f'only {DEFAULT_ONLY_FIELDS[name]!r} is'
      else:
        remedy = 'its family has no such field'
      raise ValueError(f'config.json: {name}={value!r} is not supported; {remedy}')


def require_type(name: str, value: Any, *types: type) -> None:
  """Raises ValueError for a value of a JSON file that is neither None nor of one of these types, if there are
  any; a bool is no number.
  """

  def has_type(kind):
    return isinstance(value, PYTHON_TYPES.get(kind, kind)) and (kind is bool or not isinstance(value, bool))

  if value is not None and types and not any(map(has_type, types)):
    names = ' or '.join(kind.__name__ for kind in types)
    raise ValueError(f'config.json: {name}={shorten(value)} must be of type {names}')


class Field(abc.ABC):
  """Some fields of a config.json and their counterpart in our config."""

  @abc.abstractmethod
  def read(self, hf_config: HfConfig, config: dict[str, Any]) -> None:
    """Converts config.json fields and stores the result in a flat config.

    Raises:
      ValueError: for a value that our models do not support.
    """

  @abc.abstractmethod
  def write(self, config: Mapping[str, Any], hf_config: dict[str, Any]) -> None:
    """Converts values of a flat config and stores the result in the fields of a config.json.

    Raises:
      ValueError: for a value that the family does not support.
    """


@dataclasses.dataclass(frozen=True)
class MappedField(Field):
  """A field of config.json that corresponds to one field of our config.

  Attributes:
    name: in config.json.
    path: in our config.
    default: the value if config.json lacks the field.
    aliases: its other names, in older files.
  """

  name: str
  path: str
  converter: Converter = IDENTITY
  default: Any = MISSING
  aliases: tuple[str, ...] = ()

  def read(self, hf_config, config):
    name = next((name for name in self.aliases if name in hf_config), self.name)
    value = hf_config.get(name, self.default)
    for other in (self.name, *self.aliases):
      if (other_value := hf_config.get(other, value)) != value:
        raise ValueError(
          f'config.json: {other}={other_value!r} contradicts {name}={value!r}, the same field; '
          'keep one of them'
        )
    try:
      config[self.path] = self.converter.read(value)
    except ValueError as error:
      raise ValueError(f'config.json: {self.name}={error}') from None

  def write(self, config, hf_config):
    try:
      hf_config[self.name] = self.converter.write(config[self.path])
    except ValueError as error:
      raise ValueError(f'config.{self.path}={error}') from None


@dataclasses.dataclass(frozen=True)
class SpecArgument(Field):
  """A field of config.json that is one argument of a spec in our config; an earlier field sets the spec.

  Attributes:
    name: in config.json.
    path: of the spec in our config.
    argument: of the spec.
    default: the value if config.json lacks the field.
    spec_default: the value if the spec omits the argument.
  """

  name: str
  path: str
  argument: str
  converter: Converter = IDENTITY
  default: Any = MISSING
  spec_default: Any = MISSING

  def read(self, hf_config, config):
    value = hf_config.get(self.name, self.default)
    try:
      value = self.converter.read(value)
    except ValueError as error:
      raise ValueError(f'config.json: {self.name}={error}') from None
    call = parse(config[self.path])
    if value != self.spec_default:
      config[self.path] = format_spec(call.name, dict(call.kwargs) | {self.argument: value})

  def write(self, config, hf_config):
    value = parse(config[self.path]).kwargs.get(self.argument, self.spec_default)
    if value is MISSING:
      raise ValueError(
        f'config.{self.path}={config[self.path]!r} has no {self.argument!r}, which the family requires'
      )
    try:
      hf_config[self.name] = self.converter.write(value)
    except ValueError as error:
      raise ValueError(f'config.{self.path}={config[self.path]!r}: {self.argument}={error}') from None


@dataclasses.dataclass(frozen=True)
class ConfigConstant(Field):
  """A field of our config that has one value in the whole family."""

  path: str
  value: Any

  def read(self, hf_config, config):
    config[self.path] = self.value

  def write(self, config, hf_config):
    pass  # `validate_round_trip` reads the written config.json again and compares


@dataclasses.dataclass(frozen=True)
class SupportedValues(Field):
  """Fields of config.json that are supported at one value only, which is also their default."""

  values: Mapping[str, Any]

  def __init__(self, **values: Any):
    object.__setattr__(self, 'values', values)

  def read(self, hf_config, config):
    for name, supported in self.values.items():
      if (value := hf_config.get(name, supported)) != supported:
        raise ValueError(f'config.json: {name}={value!r} is not supported; only {supported!r} is')

  def write(self, config, hf_config):
    hf_config.update(self.values)


@dataclasses.dataclass(frozen=True)
class EquivalentValues(Field):
  """A field of config.json that is supported at several values of the same meaning; the first is written."""

  name: str
  values: tuple[Any, ...]

  def read(self, hf_config, config):
    if (value := hf_config.get(self.name, self.values[0])) not in self.values:
      raise ValueError(
        f'config.json: {self.name}={value!r} is not supported; use one of {", ".join(map(str, self.values))}'
      )

  def write(self, config, hf_config):
    hf_config[self.name] = self.values[0]


@dataclasses.dataclass(frozen=True)
class AliasField(Field):
  """A field that some files have in addition to another one, and whose value must be the same.

  Attributes:
    name: of the alias.
    original: name of the other field.
    default: of the other field, if config.json lacks it.
  """

  name: str
  original: str
  default: Any

  def read(self, hf_config, config):
    original = hf_config.get(self.original, self.default)
    if (value := hf_config.get(self.name, None)) not in (None, original):
      raise ValueError(
        f'config.json: {self.name}={value!r} is not supported with {self.original}={original!r}; '
        'use the same value'
      )

  def write(self, config, hf_config):
    pass


@dataclasses.dataclass(frozen=True)
class IgnoredFields(Field):
  """Fields of config.json that change nothing, or only training, in this family."""

  names: tuple[str, ...]

  def __init__(self, *names: str):
    object.__setattr__(self, 'names', names)

  def read(self, hf_config, config):
    for name in self.names:
      hf_config.get(name, None)

  def write(self, config, hf_config):
    pass


@dataclasses.dataclass(frozen=True)
class NestedFields(Field):
  """Fields inside one field of config.json that is an object itself.

  Attributes:
    name: of the object.
    fields: inside it.
  """

  name: str
  fields: tuple[Field, ...]

  def read(self, hf_config, config):
    nested = HfConfig(hf_config.get(self.name, None) or {})
    try:
      for field in self.fields:
        with nested.converting():
          field.read(nested, config)
      nested.reject_unread()
    except ValueError as error:
      raise ValueError(f'{error} (in {self.name})') from None

  def write(self, config, hf_config):
    nested = hf_config.setdefault(self.name, {})
    for field in self.fields:
      field.write(config, nested)


@dataclasses.dataclass(frozen=True)
class CustomField(Field):
  """Fields that depend on each other, converted by two functions.

  Attributes:
    read_fields: config.json → {path: value} of our config.
    write_fields: our flat config → {name: value} of config.json.
  """

  read_fields: Callable[[HfConfig], Mapping[str, Any]]
  write_fields: Callable[[Mapping[str, Any]], Mapping[str, Any]]

  def read(self, hf_config, config):
    config.update(self.read_fields(hf_config))

  def write(self, config, hf_config):
    hf_config.update(self.write_fields(config))


def learned_position(
  name: str, default: Any = MISSING, extra_rows: int = 0, path: str = 'model.position'
) -> CustomField:
  """Learned positions; config.json states the number of rows, which is also the length of the sequences.

  Args:
    extra_rows: rows of the published table before position 0; `name` counts them and our table lacks them.
  """
  converter = spec_argument('learned', 'rows')

  def read_fields(hf_config):
    rows = hf_config.get(name, default) - extra_rows
    return {path: converter.read(rows), 'data.length': rows}

  def write_fields(config):
    try:
      rows = converter.write(config[path]) if config[path] != 'learned' else config['data.length']
    except ValueError as error:
      raise ValueError(f'config.{path}={error}') from None
    return {name: rows + extra_rows}

  return CustomField(read_fields, write_fields)


def class_count(output: str) -> tuple[CustomField, ...]:
  """The number of classes, if the output is classes. The names of the classes are not stored."""

  def read_fields(hf_config):
    names = hf_config.get('id2label', None)
    return {'classes': len(names) if names else hf_config.get('num_labels', 2)}

  def write_fields(config):
    names = {str(i): f'LABEL_{i}' for i in range(config['classes'])}
    return dict(id2label=names, label2id={name: int(i) for i, name in names.items()})

  return (CustomField(read_fields, write_fields),) if output in ('classes', 'token_classes') else ()
