"""Rotary positions as config.json has them: in one field of `transformers` 5, in two or three of older files."""

from collections.abc import Mapping
from typing import Any

from tfm.hf.families.fields import MISSING, Both, Given, spelled
from tfm.spec import Call, parse


# What a scaling takes from config.json: name there → ours. `original` is the model's length where it is not there.
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
OLD_NAMES = {'su': 'longrope', 'default': 'default', 'mrope': 'mrope'}


def field(
  theta: str = 'rope_theta',
  fraction: str = 'partial_rotary_factor',
  length: str = 'max_position_embeddings',
  usual_theta: float = 10_000.0,
  usual_fraction: float = 1.0,
  usual_length: Any = MISSING,
  interleaved: bool = False,
  path: str = 'model.position',
) -> Both:
  """`path` as a spec of rope.

  Args:
    theta, fraction, length: names in older files; usual_theta, usual_fraction, usual_length: where a file does not say.
    interleaved: what the family's pairs are.
  """

  def reading(given: Given) -> dict[str, Any]:
    new, old = dict(given.take('rope_parameters', None) or {}), dict(given.take('rope_scaling', None) or {})
    base = given.take(theta, None), new.pop('rope_theta', None), usual_theta
    part = given.take(fraction, None), new.pop('partial_rotary_factor', None), usual_fraction
    longest, original = given.take(length, usual_length), given.take('original_max_position_embeddings', None)
    told = {name: value for name, value in (old | new).items() if value is not None}
    kinds = told.pop('rope_type', None), told.pop('type', None), 'default'
    kind = next(x for x in kinds if x is not None)
    kind = OLD_NAMES.get(kind, kind)
    kwargs = {}
    if (value := _first(base)) != 10_000.0:
      kwargs['theta'] = float(value)
    if (value := _first(part)) != 1.0:
      kwargs['fraction'] = float(value)
    if interleaved:
      kwargs['interleaved'] = True
    if kind != 'default':
      kwargs['scaling'] = _scaling(kind, told, longest, original)
    elif told.keys() - {'factor', 'original_max_position_embeddings'}:
      raise ValueError(
        f'config.json: rope_parameters has {next(iter(told))!r}, which rope_type={kind!r} does not use'
      )
    return {path: spelled('rope', kwargs)}

  def writing(config: Mapping[str, Any]) -> dict[str, Any]:
    call = parse(config[path])
    kwargs = dict(zip(('theta', 'fraction', 'interleaved', 'scaling'), call.args)) | dict(call.kwargs)
    if call.name != 'rope' or bool(kwargs.get('interleaved')) != interleaved:
      raise ValueError(
        f'config.{path}={config[path]!r} is not said by the family; '
        f'{"rope(interleaved=True)" if interleaved else "rope"!r} would be'
      )
    made = {theta: kwargs.get('theta', 10_000.0)}
    if kwargs.get('fraction', 1.0) != usual_fraction or usual_fraction != 1.0:
      made[fraction] = kwargs.get('fraction', 1.0)
    scaling = parse(kwargs.get('scaling', 'none'))
    if scaling.name != 'none':
      made['rope_scaling'] = _written(scaling)
    return made

  return Both(reading, writing)


def longest_matters(position: str) -> bool:
  """Whether the published rotation changes with the length of the text."""
  call = parse(position)
  return call.name == 'rope' and parse(call.kwargs.get('scaling', 'none')).name in ('dynamic', 'longrope')


def _scaling(kind: str, told: dict[str, Any], longest: int, original: int | None) -> str:
  if kind not in SCALINGS:
    raise ValueError(
      f'config.json: rope_type={kind!r} is not understood; known: default, {", ".join(SCALINGS)}'
    )
  known = SCALINGS[kind]
  for name, value in told.items():
    if name not in known and name != 'attention_factor':
      raise ValueError(
        f'config.json: rope_parameters.{name}={value!r} is not understood of rope_type={kind!r}; '
        f'known: {", ".join(known)}'
      )
  if original is not None:
    told.setdefault('original_max_position_embeddings', original)
  if 'original' in known.values():
    # Published code takes the model's whole length for a dynamic scaling, whatever else is said.
    told['original_max_position_embeddings'] = (
      longest if kind == 'dynamic' else told.get('original_max_position_embeddings', longest)
    )
  if kind in ('yarn', 'longrope'):
    told.setdefault('factor', longest / told['original_max_position_embeddings'])
  if not (told.get('mscale') and told.get('mscale_all_dim')):  # one without the other is not looked at
    told = {name: value for name, value in told.items() if name not in ('mscale', 'mscale_all_dim')}
  return spelled(
    kind,
    {
      known[name]: tuple(value) if isinstance(value, list) else value
      for name, value in told.items()
      if name in known
    },
  )


def _written(call: Call) -> dict[str, Any]:
  theirs = {ours: name for name, ours in SCALINGS[call.name].items()}
  known = list(SCALINGS[call.name].values())
  kwargs = dict(zip(known, call.args)) | dict(call.kwargs)
  return {'rope_type': call.name, 'type': call.name} | {
    theirs[name]: list(value) if isinstance(value, tuple) else value for name, value in kwargs.items()
  }


def _first(values) -> Any:
  return next(value for value in values if value is not None)
