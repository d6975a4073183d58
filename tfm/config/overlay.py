"""Fields set in a config: from another config, by dotted path, from the text of a command line."""

import ast
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from tfm.config.schema import (
  BLOCK_FIELDS,
  INHERITING,
  TABLES,
  add_architecture_sections,
  default_config,
  empty_sections,
  leaves,
  optional,
)
from tfm.errors import require, suggest


def complete(fields: Mapping) -> ConfigDict:
  """The default config with these fields set.

  Raises:
    ValueError: for a field that is not there or a value of the wrong type.
  """
  return overlay(default_config(), fields)


def overlay(config: ConfigDict, fields: Mapping) -> ConfigDict:
  """Sets these fields in a complete config and returns it.

  Raises:
    ValueError: for a field that is not there or a value of the wrong type.
  """
  fields = ConfigDict(fields)
  model = fields.get('model')
  blocks = model.get('blocks') if isinstance(model, ConfigDict) else None
  for name in blocks if isinstance(blocks, ConfigDict) else ():
    if name not in config.model.blocks:
      config.model.blocks[name] = optional(BLOCK_FIELDS)
  if isinstance(model, ConfigDict) and 'architecture' in model:
    assign(config, 'model.architecture', model.architecture)  # first, because it adds sections
  for path, value in leaves(fields):
    assign(config, path, value)
  for path in empty_sections(fields):  # they set nothing, but must be sections
    section, name = find(config, path, {})
    require(
      isinstance(section[name], ConfigDict), f'config.{path}={{}} is a field, not a section; set a value'
    )
  return config


def find(config: ConfigDict, path: str, value: Any = ...) -> tuple[ConfigDict, str]:
  """The section that holds `config.path.to.field` and the last name in it; both must exist, except for a
  field of `TABLES`, which is added.

  Args:
    value: that the field is to have, for messages; ...: none.
  """
  node, names = config, path.split('.')
  for depth, name in enumerate(names):
    if (table := '.'.join(names[:depth])) in TABLES and depth == len(names) - 1 and name not in node:
      node[name] = TABLES[table].default
    if not isinstance(node, ConfigDict) or name not in node:
      section = '.'.join(['config', *names[:depth]])
      known = suggest(name, node) if isinstance(node, ConfigDict) else 'it has no fields of its own'
      raise ValueError(f'{format_setting(path, value)} is not a field; under {section}: {known}')
    section, node = node, node[name]
  return section, names[-1]


def locate(config: ConfigDict, path: str, value: Any = ...) -> tuple[ConfigDict, str]:
  """`find` of a field, not of a section."""
  section, name = find(config, path, value)
  if isinstance(section[name], ConfigDict):
    raise ValueError(f'{format_setting(path, value)} is a section; {suggest("", section[name])}')
  return section, name


def format_setting(path: str, value: Any) -> str:
  """`config.PATH=VALUE`, or without a value `config.PATH`, for messages."""
  return f'config.{path}' if value is ... else f'config.{path}={value!r}'


def assign(config: ConfigDict, path: str, value: Any) -> None:
  """Sets `config.path.to.field`, which must exist and keep its type."""
  section, field = locate(config, path, value)
  # ConfigDict accepts None for every field; here None is valid only where it has a meaning.
  allows_none = (
    value is not None or path.startswith(INHERITING) or dict(leaves(default_config())).get(path) is None
  )
  kind = section.get_type(field)
  is_number = kind in (int, float) and not isinstance(value, bool)
  require(allows_none, f'config.{path}=None must be of type {kind.__name__}')
  require(is_number or kind not in (int, float), f'config.{path}={value!r} must be of type {kind.__name__}')
  try:
    section[field] = value
  except TypeError:
    raise ValueError(f'config.{path}={value!r} must be of type {kind.__name__}') from None
  if path == 'model.architecture':
    add_architecture_sections(section)


def assign_text(config: ConfigDict, path: str, text: str) -> None:
  """Sets a field from command-line text: strings verbatim, other types as Python literals.

  For a tuple of strings, any other text is its only entry.
  """
  section, field = locate(config, path, text)
  if section.get_type(field) is str:
    value = text
  else:
    try:
      value = ast.literal_eval({'true': 'True', 'false': 'False', 'none': 'None'}.get(text.lower(), text))
    except (ValueError, SyntaxError):
      value = text
    if section.get_type(field) is tuple and not isinstance(value, (tuple, list)):
      value = (text,)
  assign(config, path, value)
