"""Layers that differ: what config.json says of each, as a pattern of blocks; and windows, in which they mostly do."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from tfm.errors import suggest
from tfm.hf.families.fields import Both, Form, Given


# What config.json calls a layer → its block of ours.
KINDS = {'full_attention': 'full', 'sliding_attention': 'sliding'}


def pattern(kinds: Sequence[str], blocks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
  """Path → value: the shortest pattern of the layers and the fields of its blocks; of one kind alone, of the model.

  Args:
    kinds: of each layer; blocks: kind → field → value.
  """
  if len(set(kinds)) == 1:
    return {f'model.{field}': value for field, value in blocks[kinds[0]].items()}
  size = next(
    n for n in range(1, len(kinds) + 1) if all(kind == kinds[i % n] for i, kind in enumerate(kinds))
  )
  return {'model.pattern': tuple(kinds[:size])} | {
    f'model.blocks.{kind}.{field}': value for kind in kinds[:size] for field, value in blocks[kind].items()
  }


def each(config: Mapping[str, Any], field: str) -> list[Any]:
  """A field of every layer of a flat config."""
  turn = config['model.pattern'] or [None]
  return [
    config[f'model.{field}' if (name := turn[i % len(turn)]) is None else f'model.blocks.{name}.{field}']
    for i in range(config['model.layers'])
  ]


def sections(config: ConfigDict) -> list[ConfigDict]:
  """Of every layer, the section of a config that describes it."""
  m = config.model
  turn = [m.blocks[name] for name in m.pattern] or [m]
  return [turn[i % len(turn)] for i in range(m.layers)]


def _read_window(size: int | None) -> str:
  if size is not None and size < 1:
    raise ValueError(f'{size!r} is not understood; null, for none, or 1 and more would do')
  # Published windows count the token itself.
  return 'causal' if size is None else f'causal & window({size - 1})'


def _written_window(mask: str) -> int | None:
  found = re.fullmatch(r'causal(?: & window\((?:left=)?(\d+)\))?', mask)
  if not found:
    raise ValueError(f"{mask!r} is not said by the family; 'causal' or 'causal & window(…)' would be")
  return None if found[1] is None else int(found[1]) + 1


# The number of tokens that each one sees, itself among them, as a mask.
WINDOW = Form(_read_window, _written_window)


def windows(
  size: Callable[[Given], int | None],
  usual: Callable[[int, Given], str],
  written: Callable[[int | None, Sequence[str]], Mapping[str, Any]],
) -> Both:
  """The mask of every layer.

  Args:
    size: of the window of those that have one; None: none has.
    usual: number of a layer → what it is where `layer_types` does not say.
    written: the window and `layer_types` → what else config.json says.
  """

  def reading(given):
    count, window, told = given.take('num_hidden_layers'), size(given), given.take('layer_types', None)
    types = [usual(i, given) for i in range(count)] if told is None else told
    for name in types:
      if name not in KINDS:
        raise ValueError(
          f'config.json: layer_types has {name!r}, which is not understood; {suggest(name, KINDS)}'
        )
    if len(types) != count:
      raise ValueError(
        f'config.json: layer_types={types!r} is of {len(types)} layers, and num_hidden_layers={count}'
      )
    if window is None and 'sliding_attention' in types:
      raise ValueError(
        "config.json: layer_types has 'sliding_attention', and sliding_window says of no window"
      )
    try:
      masks = {
        name: dict(mask=WINDOW.read(window if name == 'sliding_attention' else None)) for name in types
      }
    except ValueError as error:
      raise ValueError(f'config.json: sliding_window={error}') from None
    return pattern([KINDS[name] for name in types], {KINDS[name]: block for name, block in masks.items()})

  def writing(config):
    try:
      sizes = [WINDOW.write(mask) for mask in each(config, 'mask')]
    except ValueError as error:
      raise ValueError(f'config.model.mask={error}') from None
    found = set(sizes) - {None}
    if len(found) > 1:
      raise ValueError(
        f'config.model.blocks have the windows {sorted(found)}, and the family says one for all layers'
      )
    types = ['full_attention' if size is None else 'sliding_attention' for size in sizes]
    return dict(layer_types=types) | written(next(iter(found), None), types)

  return Both(reading, writing)
