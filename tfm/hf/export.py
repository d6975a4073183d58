"""Writes a model as a published checkpoint (config.json and tensors), after checking that reading it gives
the same model.
"""

import collections
import dataclasses
import functools
import inspect
import itertools
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
from ml_collections import ConfigDict

from tfm.config.difference import list_differences
from tfm.config.overlay import assign
from tfm.config.schema import default_config, leaves, parts
from tfm.errors import require, suggest
from tfm.hf import checkpoint_tensors, tensor_files
from tfm.hf.families._field_converters import format_spec
from tfm.hf.families.protocol import Family
from tfm.hf.from_config import build_model, config_from_hf, load_families
from tfm.mixers.protocol import Mixer
from tfm.parallel import processes
from tfm.positions.protocol import Position
from tfm.shapes import PyTree
from tfm.spec import parse
from tfm.training.atomic_files import write_atomically


# Fields of the model that concern initialization, training or computation, not the function it computes.
NOT_ARCHITECTURE = (
  'dtype',
  'scan',
  'remat',
  'kernel',
  'dropout',
  'initializer',
  'embedding_initializer',
  'depth_scaled',
  'vocab_multiple',
)


def to_pretrained(  # more than six parameters: the last four describe the vocabulary
  config: ConfigDict,
  params: PyTree,
  folder: str,
  family: str,
  vocab: int,
  ids: Mapping[str, Any] = {},
  output: str = 'vocabulary',
  source_vocab: int = 0,
) -> None:
  """Writes a model as config.json and model.safetensors, in float32.

  `from_pretrained` and the published implementation read the folder.

  Args:
    config: resolved.
    params: of the config's model; the first `vocab` tokens are written, and `source_vocab` of a separate
      source.
    family: the model_type of config.json.
    ids: of special tokens, as in `LoadedModel`.
    output: one of `tfm.hf.families.protocol.OUTPUTS`.

  Raises:
    ValueError: for an unknown family, or a config that the family does not support, by its first such field.
  """
  families = load_families()
  require(family in families, f'--family={family!r} is not supported; {suggest(family, families)}')
  config = config.copy_and_resolve_references()
  write_position_rows(config)
  family = families[family]
  flat = (
    dict(leaves(config))
    | {'vocab': vocab, 'source_vocab': source_vocab}
    | {f'ids.{name}': value for name, value in ids.items()}
  )
  objective = parse(config.objective)
  if objective.name == 'classification':
    flat['classes'] = objective.args[0] if objective.args else objective.kwargs['classes']
  fields = family.write(output, _MissingAsNone(flat))
  validate_round_trip(config, family, fields, vocab, source_vocab)
  weights, constants = list(family.weights(config)), dict(family.constants(config))
  stored = checkpoint_tensors.iterate_tensors(weights, trim_vocabulary(params, vocab, source_vocab))
  tensors = itertools.chain(stored, constants.items())
  if not processes.is_main_process():
    collections.deque(tensors, maxlen=0)  # the main process writes what all gather
    return
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  write_atomically(folder / 'config.json', json.dumps(fields, indent=2) + '\n')
  names = [name for weight in weights for name in weight.tensors]
  tensor_files.save_tensors(folder, tensors, [*names, *constants])


class _MissingAsNone(dict):
  """A flat config in which a missing value, such as an unknown token id, is None."""

  def __missing__(self, path):
    return None


def validate_round_trip(
  config: ConfigDict, family: Family, fields: dict[str, Any], vocab: int, source_vocab: int = 0
) -> None:
  """Raises ValueError if reading the config.json gives a different model."""
  not_supported = f'{family.model_type!r} does not support this config'
  try:
    read, *_, read_source = config_from_hf(family, fields)
  except ValueError as error:
    raise ValueError(f'{not_supported}: {error}') from error
  again = config.copy_and_resolve_references()
  again.model, again.data.length = read.model, read.data.length
  for path in family.unread_config_paths:
    assign(again, path, dict(leaves(config))[path])
  require(
    read_source == source_vocab,
    f'{not_supported}: config.data.source_tokenizer={config.data.source_tokenizer!r} gives '
    'sources a separate '
    'vocabulary',
  )
  before, after = (
    describe_module(build_model(normalize_config(c), vocab, source_vocab)) for c in (config, again)
  )
  lines = [
    line
    for line in list_differences(config.to_dict(), again.to_dict())
    if line.startswith('model.') and not line.removeprefix('model.').startswith(NOT_ARCHITECTURE)
  ]
  require(
    before == after,
    f'{not_supported}; its config.json would describe a different model: '
    f'{"; ".join(lines) or "another length"}',
  )


def write_position_rows(config: ConfigDict) -> None:
  """Makes the rows of learned positions explicit in a config where they default to the length; config.json
  has them.
  """
  for section in parts(config).values():
    call = parse(section.get('position') or 'none')
    if call.name == 'learned' and not call.args and 'rows' not in call.kwargs:
      section.position = format_spec('learned', dict(rows=config.data.length) | dict(call.kwargs))


def normalize_config(config: ConfigDict) -> ConfigDict:
  """A copy with defaults in `NOT_ARCHITECTURE`, without scan, and with a pattern that lists every layer."""
  config, defaults = config.copy_and_resolve_references(), default_config().model
  for field in NOT_ARCHITECTURE:
    config.model[field] = defaults[field]
  config.model.scan = False
  for section in parts(config).values():
    if 'kernel' in section:
      section.kernel = defaults.kernel
    if section.get('pattern'):
      section.pattern = tuple(section.pattern[i % len(section.pattern)] for i in range(section.layers))
  return config


def describe_module(x: Any) -> Any:
  """A comparable description of a module or factory: its type and attributes, defaults included.

  A position is described by its fingerprint.
  """
  if isinstance(x, functools.partial):
    if is_factory_of(x, Position):
      return x.func, x().fingerprint()
    if is_factory_of(x, Mixer) and 'position' in x.keywords:
      x = functools.partial(
        x, position=functools.partial(x.keywords['position'], head_width=x().position_width)
      )
    bound = inspect.signature(x.func).bind_partial(*x.args, **x.keywords)
    bound.apply_defaults()
    return x.func, {
      name: describe_module(value)
      for name, value in bound.arguments.items()
      if name not in ('parent', 'name')
    }
  if isinstance(x, nn.Module):
    return type(x), {
      field.name: describe_module(getattr(x, field.name))
      for field in dataclasses.fields(x)
      if field.name not in ('parent', 'name')
    }
  # The address of a function is not compared.
  return (
    tuple(map(describe_module, x))
    if isinstance(x, (tuple, list))
    else re.sub(r' at 0x[0-9a-f]+', '', repr(x))
  )


def is_factory_of(x: functools.partial, kind: type) -> bool:
  """Whether a partial constructs a subclass of `kind`."""
  return isinstance(x.func, type) and issubclass(x.func, kind)


def trim_vocabulary(params: PyTree, vocab: int, source_vocab: int = 0) -> PyTree:
  """Parameters without the padding rows of the vocabulary."""
  sizes = {
    'embedding/table': (0, vocab),
    'output/kernel': (1, vocab),
    'bias/bias': (0, vocab),
    'source_embedding/table': (0, source_vocab),
  }

  def trim(path, x):
    axis, rows = sizes.get(checkpoint_tensors.join_path(path), (None, 0))
    return x if axis is None or x.shape[axis] == rows else jax.lax.slice_in_dim(x, 0, rows, axis=axis)

  return jax.tree_util.tree_map_with_path(trim, params)
