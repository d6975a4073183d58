"""Layers that differ: the per-layer values of config.json as a pattern of blocks; and sliding windows, the
usual case.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from tfm.config.schema import field_ranges
from tfm.errors import require, suggest
from tfm.hf.families._config_fields import CustomField, HfConfig
from tfm.hf.families._field_converters import MISSING, Converter
from tfm.spec import unsuitable_reason


# Layer type in config.json → name of the block in our config.
LAYER_TYPES = {'full_attention': 'full', 'sliding_attention': 'sliding'}


def layer_count(hf_config: HfConfig, name: str, default: Any = MISSING) -> int:
  """The number of layers, before anything is listed for each.

  Raises:
    ValueError: for one that is out of the range of `model.layers`.
  """
  count = hf_config.get(name, default)
  reason = unsuitable_reason(count, field_ranges()['model.layers'])
  require(not reason, f'config.json: {name}={count!r} {reason}')
  return count


def layer_pattern(kinds: Sequence[str], blocks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
  """Path → value of our config: the shortest repeating pattern of the layers, and the fields of its blocks.

  With a single kind there is no pattern, and its fields are set on the model.

  Args:
    kinds: the kind of each layer.
    blocks: kind → field → value.
  """
  if len(set(kinds)) == 1:
    return {f'model.{field}': value for field, value in blocks[kinds[0]].items()}
  size = next(
    n for n in range(1, len(kinds) + 1) if all(kind == kinds[i % n] for i, kind in enumerate(kinds))
  )
  return {'model.pattern': tuple(kinds[:size])} | {
    f'model.blocks.{kind}.{field}': value for kind in kinds[:size] for field, value in blocks[kind].items()
  }


def layer_values(config: Mapping[str, Any], field: str) -> list[Any]:
  """The value of a field in every layer of a flat config."""
  pattern = config['model.pattern'] or [None]
  return [
    config[
      f'model.{field}' if (name := pattern[i % len(pattern)]) is None else f'model.blocks.{name}.{field}'
    ]
    for i in range(config['model.layers'])
  ]


def layer_sections(config: ConfigDict) -> list[ConfigDict]:
  """The config section that describes each layer."""
  m = config.model
  sections = [m.blocks[name] for name in m.pattern] or [m]
  return [sections[i % len(sections)] for i in range(m.layers)]


def _read_window(size: int | None) -> str:
  if size is not None and size < 1:
    raise ValueError(f'{size!r} is not supported; use null for no window, or a number from 1 on')
  # Published windows count the token itself.
  return 'causal' if size is None else f'causal & window({size - 1})'


def _write_window(mask: str) -> int | None:
  match = re.fullmatch(r'causal(?: & window\((?:left=)?(\d+)\))?', mask)
  if not match:
    raise ValueError(f"{mask!r} is not supported by the family; use 'causal' or 'causal & window(…)'")
  return None if match[1] is None else int(match[1]) + 1


# The number of tokens visible to each token, itself included, as a mask.
WINDOW = Converter(_read_window, _write_window)


def window_masks(
  get_size: Callable[[HfConfig], int | None],
  default_type: Callable[[int, HfConfig], str],
  write_size: Callable[[int | None, Sequence[str]], Mapping[str, Any]],
) -> CustomField:
  """The mask of every layer.

  Args:
    get_size: the size of the window in the layers that have one; None: no layer has one.
    default_type: layer index → its type, if config.json has no `layer_types`.
    write_size: (window, `layer_types`) → further fields of config.json.
  """

  def read_fields(hf_config):
    count, window = layer_count(hf_config, 'num_hidden_layers'), get_size(hf_config)
    types = hf_config.get('layer_types', None)
    if types is None:
      types = [default_type(i, hf_config) for i in range(count)]
    for name in types:
      if name not in LAYER_TYPES:
        raise ValueError(
          f'config.json: layer_types has {name!r}, which is not supported; {suggest(name, LAYER_TYPES)}'
        )
    if len(types) != count:
      raise ValueError(
        f'config.json: layer_types={types!r} has {len(types)} entries; use num_hidden_layers={count} entries'
      )
    if window is None and 'sliding_attention' in types:
      raise ValueError(
        "config.json: layer_types has 'sliding_attention' without a sliding_window; set its size"
      )
    try:
      masks = {
        name: dict(mask=WINDOW.read(window if name == 'sliding_attention' else None)) for name in types
      }
    except ValueError as error:
      raise ValueError(f'config.json: sliding_window={error}') from None
    blocks = {LAYER_TYPES[name]: block for name, block in masks.items()}
    return layer_pattern([LAYER_TYPES[name] for name in types], blocks)

  def write_fields(config):
    try:
      sizes = [WINDOW.write(mask) for mask in layer_values(config, 'mask')]
    except ValueError as error:
      raise ValueError(f'config.model.mask={error}') from None
    windows = set(sizes) - {None}
    if len(windows) > 1:
      raise ValueError(
        f'config.model.blocks have the windows {sorted(windows)}; the family supports one for all layers'
      )
    types = ['full_attention' if size is None else 'sliding_attention' for size in sizes]
    return dict(layer_types=types) | write_size(next(iter(windows), None), types)

  return CustomField(read_fields, write_fields)
