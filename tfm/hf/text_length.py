"""Rotary scalings that published implementations adapt to the length of the text."""

from ml_collections import ConfigDict

from tfm.config import schema
from tfm.hf.families import _rope_fields


def parts_by_length(config: ConfigDict) -> list[str]:
  """The sections of the config whose positions depend on the length of the text."""
  parts = schema.parts(config).items()
  return [
    path for path, part in parts if part.get('position') and _rope_fields.depends_on_length(part.position)
  ]


def follow_length(config: ConfigDict, length: int) -> ConfigDict:
  """The config of the model that continues prompts, the longest of `length` tokens: a rotary scaling that
  depends on the length of the text changes with every token, as in the published implementation.
  """
  config = config.copy_and_resolve_references()
  for path in parts_by_length(config):
    part = schema.parts(config)[path]
    part.position = _rope_fields.follow_length(part.position, length)
  return config
