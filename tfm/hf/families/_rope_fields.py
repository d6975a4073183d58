"""Rotary positions in config.json: one field in `transformers` 5, two or three fields in older files."""

from collections.abc import Mapping
from typing import Any

from tfm.errors import require
from tfm.hf.families._config_fields import CustomField, HfConfig, require_type
from tfm.hf.families._field_converters import MISSING, format_spec
from tfm.spec import Call, parse


# Scaling → name of a parameter in config.json → ours. `original` defaults to the model's length.
SCALINGS = {
  'linear': dict(factor='factor'),
  'dynamic': dict(factor='factor', original_max_position_embeddings='original'),
  'yarn': dict(
    factor='factor',
    original_max_position_embeddings='original',
    beta_fast='beta_fast',
    beta_slow='beta_slow',
    attention_factor='attention_factor',
    mscale='mscale',
    mscale_all_dim='mscale_all_dim',
    truncate='truncate',
  ),
  'llama3': dict(
    factor='factor',
    low_freq_factor='low_freq_factor',
    high_freq_factor='high_freq_factor',
    original_max_position_embeddings='original',
  ),
  'longrope': dict(
    short_factor='short_factor',
    long_factor='long_factor',
    factor='factor',
    original_max_position_embeddings='original',
    attention_factor='attention_factor',
  ),
}
PATH = 'model.position'
OLD_NAMES = {'su': 'longrope', 'default': 'default', 'mrope': 'mrope'}


def position_field(
  theta: str = 'rope_theta',
  fraction: str = 'partial_rotary_factor',
  default_theta: float = 10_000.0,
  default_fraction: float = 1.0,
  default_length: Any = MISSING,
  interleaved: bool = False,
  partial: bool = False,
) -> CustomField:
  """`model.position` of our config as a spec of rope.

  Args:
    theta, fraction: names of the fields in older files.
    default_theta, default_fraction, default_length: values if a file lacks the field.
    interleaved: whether the family rotates pairs of neighboring channels.
    partial: whether the family may leave some channels of a head as they are.
  """

  def read_fields(hf_config: HfConfig) -> dict[str, Any]:
    new = dict(hf_config.get('rope_parameters', None) or {})
    old = dict(hf_config.get('rope_scaling', None) or {})
    for name in sorted(new.keys() & old.keys()):
      _single(f'rope_parameters.{name}', new[name], name, None, rope_scaling=old)
    objects = dict(rope_parameters=new, rope_scaling=old)
    base = _single(theta, hf_config.get(theta, None), 'rope_theta', default_theta, **objects)
    share = _single(
      fraction, hf_config.get(fraction, None), 'partial_rotary_factor', default_fraction, **objects
    )
    require(
      partial or share == default_fraction,
      f'config.json: partial_rotary_factor={share!r} is not supported: this family rotates all channels',
    )
    longest = hf_config.get('max_position_embeddings', default_length)
    original = hf_config.get('original_max_position_embeddings', None)
    parameters = {
      name: value
      for name, value in (old | new).items()
      if value is not None and name not in ('rope_theta', 'partial_rotary_factor')
    }
    kind = _first((parameters.pop('rope_type', None), parameters.pop('type', None), 'default'))
    kind = OLD_NAMES.get(kind, kind)
    kwargs = {}
    for name, value, neutral in (('theta', base, 10_000.0), ('fraction', share, 1.0)):
      require_type(name, value, float)
      if value != neutral:
        kwargs[name] = float(value)
    if interleaved:
      kwargs['interleaved'] = True
    if kind in ('yarn', 'llama3', 'longrope'):  # which of two counts depends on the version of published code
      name = 'original_max_position_embeddings'
      _single(name, original, name, None, **objects)
    if kind != 'default':
      kwargs['scaling'] = _read_scaling(kind, parameters, longest, original)
    elif parameters.keys() - {'factor', 'original_max_position_embeddings'}:
      raise ValueError(
        f'config.json: rope_parameters has {next(iter(parameters))!r}, which rope_type={kind!r} does not use'
      )
    return {PATH: format_spec('rope', kwargs)}

  def write_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    call = parse(config[PATH])
    kwargs = dict(zip(('theta', 'fraction', 'interleaved', 'scaling'), call.args)) | dict(call.kwargs)
    if call.name != 'rope' or bool(kwargs.get('interleaved')) != interleaved:
      raise ValueError(
        f'config.{PATH}={config[PATH]!r} is not supported by the family; '
        f'use {"rope(interleaved=True)" if interleaved else "rope"!r}'
      )
    share = kwargs.get('fraction', 1.0)
    require(
      partial or share == default_fraction,
      f'config.{PATH}={config[PATH]!r} is not supported: the family rotates all channels; use fraction=1',
    )
    fields = {theta: kwargs.get('theta', 10_000.0)}
    if share != default_fraction or default_fraction != 1.0:
      fields[fraction] = share
    scaling = parse(kwargs.get('scaling', 'none'))
    if scaling.name != 'none':
      fields['rope_scaling'] = _write_scaling(scaling)
    return fields

  return CustomField(read_fields, write_fields)


def depends_on_length(position: str) -> bool:
  """Whether the published rotation changes with the length of the text."""
  call = parse(position)
  return call.name == 'rope' and parse(call.kwargs.get('scaling', 'none')).name in ('dynamic', 'longrope')


def follow_length(position: str, length: int) -> str:
  """The position with a rotation that changes while a text grows beyond `length`, as published."""
  call = parse(position)
  scaling = parse(call.kwargs['scaling'])
  grown = format_spec(scaling.name, dict(scaling.kwargs) | dict(length=length, stepwise=True))
  return format_spec(call.name, dict(call.kwargs) | dict(scaling=grown))


def _read_scaling(kind: str, parameters: dict[str, Any], longest: int, original: int | None) -> str:
  if kind not in SCALINGS:
    raise ValueError(
      f'config.json: rope_type={kind!r} is not supported; use default or one of {", ".join(SCALINGS)}'
    )
  names = SCALINGS[kind]
  for name, value in parameters.items():
    if name not in names and name != 'attention_factor':
      raise ValueError(
        f'config.json: rope_parameters.{name}={value!r} is not supported for rope_type={kind!r}; '
        f'use {", ".join(names)}'
      )
  if original is not None:
    parameters.setdefault('original_max_position_embeddings', original)
  if 'original' in names.values():
    # Published code uses the model's whole length for a dynamic scaling and ignores the field.
    parameters['original_max_position_embeddings'] = (
      longest if kind == 'dynamic' else parameters.get('original_max_position_embeddings', longest)
    )
  if kind in ('yarn', 'longrope'):
    parameters.setdefault('factor', longest / parameters['original_max_position_embeddings'])
  # Published code ignores mscale without mscale_all_dim, and the reverse.
  if not (parameters.get('mscale') and parameters.get('mscale_all_dim')):
    parameters = {
      name: value for name, value in parameters.items() if name not in ('mscale', 'mscale_all_dim')
    }
  return format_spec(
    kind,
    {
      names[name]: tuple(value) if isinstance(value, list) else value
      for name, value in parameters.items()
      if name in names
    },
  )


def _write_scaling(call: Call) -> dict[str, Any]:
  if call.name not in SCALINGS:
    raise ValueError(
      f'config.{PATH}: the scaling {call.name!r} is not supported by the family; use one of '
      f'{", ".join(SCALINGS)}'
    )
  hf_names = {argument: name for name, argument in SCALINGS[call.name].items()}
  kwargs = dict(zip(hf_names, call.args)) | dict(call.kwargs)
  return {'rope_type': call.name, 'type': call.name} | {
    hf_names[name]: list(value) if isinstance(value, tuple) else value for name, value in kwargs.items()
  }


def _single(field: str, value: Any, name: str, default: Any, **objects: Mapping[str, Any]) -> Any:
  """The value of a field of config.json, which some objects in it may have under a name.

  Raises:
    ValueError: if two values differ.
  """
  found = {field: value} | {f'{key}.{name}': fields.get(name) for key, fields in objects.items()}
  found = {each: value for each, value in found.items() if value is not None}
  for other, its in found.items():
    if its != (value := next(iter(found.values()))):
      raise ValueError(
        f'config.json: {next(iter(found))}={value!r} and {other}={its!r} differ; leave one of them'
      )
  return next(iter(found.values()), default)


def _first(values) -> Any:
  """The first value that is not None."""
  return next(value for value in values if value is not None)
