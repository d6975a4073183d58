"""A model of ours as a published checkpoint: config.json and tensors; and what two models have in common."""

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
from tfm.hf.families import tensors
from tfm.hf.families.protocol import Family
from tfm.hf.from_config import declared, families, model_of
from tfm.mixers.protocol import Mixer
from tfm.positions.protocol import Position
from tfm.shapes import PyTree
from tfm.spec import parse


def export(
  config: ConfigDict,
  params: PyTree,
  folder: str,
  family: str,
  vocab: int,
  ids: Mapping[str, Any] = {},
  output: str = 'vocabulary',
  source_vocab: int = 0,
) -> None:
  """Writes a model as a folder that `from_pretrained` and the published implementation read: config.json and
  model.safetensors, in float32.

  Args:
    config: resolved; params: of its model, whose first `vocab` tokens are written, and `source_vocab` of a source's own.
    family: what config.json is to call it.
    ids: of tokens, as of `Pretrained`; output: what the model answers.

  Raises:
    ValueError: if the family is not there, or cannot say what the config says, naming the first field.
  """
  require(family in families(), f'--family={family!r} is not there; {suggest(family, families())}')
  config = config.copy_and_resolve_references()
  say_rows(config)
  family = families()[family]
  flat = (
    dict(leaves(config))
    | {'vocab': vocab, 'source_vocab': source_vocab}
    | {f'ids.{name}': value for name, value in ids.items()}
  )
  objective = parse(config.objective)
  if objective.name == 'classification':
    flat['classes'] = objective.args[0] if objective.args else objective.kwargs['classes']
  fields = family.write(output, _Said(flat))
  refuse_unsaid(config, family, fields, vocab, source_vocab)
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'config.json').write_text(json.dumps(fields, indent=2) + '\n')
  tensors.save(
    folder,
    itertools.chain(
      tensors.unload(family.weights(config), trimmed(params, vocab, source_vocab)), family.constants(config)
    ),
  )


class _Said(dict):
  """A flat config; what it does not hold, such as an id that nobody told, is None."""

  def __missing__(self, path):
    return None


def refuse_unsaid(
  config: ConfigDict, family: Family, fields: dict[str, Any], vocab: int, source_vocab: int = 0
) -> None:
  """Refuses a model that is another one when its config.json is read."""
  try:
    read, *_, read_source = declared(family, fields)
  except ValueError as error:
    raise ValueError(f'{family.model_type!r} cannot say what the config says: {error}') from error
  again = config.copy_and_resolve_references()
  again.model, again.data.length = read.model, read.data.length
  for path in family.unread:
    assign(again, path, dict(leaves(config))[path])
  require(
    read_source == source_vocab,
    f'{family.model_type!r} cannot say what the config says: config.data.source_tokenizer='
    f'{config.data.source_tokenizer!r} gives sources a vocabulary of their own',
  )
  one, other = (described(model_of(alike(c), vocab, source_vocab)) for c in (config, again))
  lines = [
    line
    for line in list_differences(config.to_dict(), again.to_dict())
    if line.startswith('model.') and not line.removeprefix('model.').startswith(FREE)
  ]
  require(
    one == other,
    f'{family.model_type!r} cannot say what the config says; what it says would be another model: '
    f'{"; ".join(lines) or "another length"}',
  )


def say_rows(config: ConfigDict) -> None:
  """Puts into a config how many rows a learned position has, where these are as many as the sequences are long: a
  config.json says it."""
  for section in parts(config).values():
    call = parse(section.get('position') or 'none')
    if call.name == 'learned' and not call.args and 'rows' not in call.kwargs:
      words = [f'rows={config.data.length}', *(f'{name}={value!r}' for name, value in call.kwargs.items())]
      section.position = f'learned({", ".join(words)})'


def alike(config: ConfigDict) -> ConfigDict:
  """A copy in which what is free is as ever, and every layer is said by itself."""
  config, usual = config.copy_and_resolve_references(), default_config().model
  for field in FREE:
    config.model[field] = usual[field]
  config.model.scan = False
  for section in parts(config).values():
    if 'kernel' in section:
      section.kernel = usual.kernel
    if section.get('pattern'):
      section.pattern = tuple(section.pattern[i % len(section.pattern)] for i in range(section.layers))
  return config


def described(x: Any) -> Any:
  """What a module or a factory is made of, with what it takes where nothing is said, and of a position what it means."""
  if isinstance(x, functools.partial):
    if makes(x, Position):
      return x.func, x().meaning()
    if makes(x, Mixer) and 'position' in x.keywords:
      x = functools.partial(x, position=functools.partial(x.keywords['position'], head_width=x().positioned))
    bound = inspect.signature(x.func).bind_partial(*x.args, **x.keywords)
    bound.apply_defaults()
    return x.func, {
      name: described(value) for name, value in bound.arguments.items() if name not in ('parent', 'name')
    }
  if isinstance(x, nn.Module):
    return type(x), {
      field.name: described(getattr(x, field.name))
      for field in dataclasses.fields(x)
      if field.name not in ('parent', 'name')
    }
  # Where in memory a function lies does not count.
  return tuple(map(described, x)) if isinstance(x, (tuple, list)) else re.sub(r' at 0x[0-9a-f]+', '', repr(x))


def makes(x: functools.partial, kind: type) -> bool:
  return isinstance(x.func, type) and issubclass(x.func, kind)


# Fields of the model that say how it begins, is trained or computed: not what it is.
FREE = (
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


def trimmed(params: PyTree, vocab: int, source_vocab: int = 0) -> PyTree:
  """Parameters without the rows of a vocabulary that are no tokens."""
  cuts = {
    'embedding/table': (0, vocab),
    'output/kernel': (1, vocab),
    'bias/bias': (0, vocab),
    'source_embedding/table': (0, source_vocab),
  }

  def cut(path, x):
    axis, rows = cuts.get(tensors.path_of(path), (None, 0))
    return x if axis is None or x.shape[axis] == rows else jax.lax.slice_in_dim(x, 0, rows, axis=axis)

  return jax.tree_util.tree_map_with_path(cut, params)
