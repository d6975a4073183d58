"""Damaged published checkpoints of every family, for tests/fuzz.py."""

import functools
import json
import math
import pathlib
import random
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors.numpy

import tfm
from tests.hf.tiny_checkpoints import FIELDS, write_checkpoint
from tfm.hf.loaded_model import LoadedModel


# What is written for a field of config.json; the last one is nested too deeply for most readers.
VALUES = (
  *(None, True, False, 0, 1, -1, 2, 7, 0.5, -0.5, 1e-300, 1e38, math.inf, -math.inf, math.nan, 10**12, 2**70),
  *('', 'x', '7', '0.5', 'causal', "relu'); (", 'x' * 1000, '\ud800', [], [1], [None], ['x', 2], [[]] * 50),
  *({}, {'a': 1}, {'factor': 'x'}, {'type': 'yarn'}, {'rope_type': ['llama3']}, {'__float__': 'Infinity'}),
  json.loads('[' * 500 + ']' * 500),
)
# Damage of a tensor, all of which must be rejected.
TENSORS = {
  'integers': lambda x: (100 * x).astype(np.int32),
  'booleans': lambda x: x > 0,
  'NaN': lambda x: np.where(np.arange(x.size).reshape(x.shape) == x.size // 2, np.nan, x).astype(x.dtype),
  'infinite': lambda x: x + np.float32(math.inf),
  'another axis': lambda x: x[None],
  'empty': lambda x: x[:0],
  'a row less': lambda x: x[:-1],
  'a row more': lambda x: np.concatenate([x, x[:1]]),
  'flat': lambda x: x.reshape(-1) if x.ndim > 1 else np.stack([x, x]),
}
PER_FAMILY = 12


class Silent(Exception):
  """What must be rejected was accepted, or does not give numbers."""


def cases(folder: pathlib.Path, seed: int, count: int) -> Iterator[tuple[str, Callable]]:
  """Yields (name, case) of damaged checkpoints of some families: of all for 400 cases."""
  draw = random.Random(f'families {seed}')
  families = draw.sample(sorted(FIELDS), min(len(FIELDS), math.ceil(count / PER_FAMILY)))
  folder = folder / 'checkpoints'
  folder.mkdir()
  for i in range(count):
    intact = folder / families[i % len(families)]
    if not intact.exists():
      write_checkpoint(intact.name, intact)
    draw = random.Random(f'checkpoint {seed} {i}')
    damage = draw.choice(
      (change_field, change_field, change_field, rename_field, change_tensor, rename_tensor)
    )
    what, apply = damage(intact, draw)
    yield f'{intact.name}: {what}', functools.partial(run, intact, apply)


def run(intact: pathlib.Path, apply: Callable[[pathlib.Path], None]) -> None:
  """Damages a copy and reads it."""
  damaged = intact.with_name('damaged')
  shutil.rmtree(damaged, ignore_errors=True)
  shutil.copytree(intact, damaged)
  apply(damaged)


def change_field(intact: pathlib.Path, draw: random.Random) -> tuple[str, Callable]:
  """Another value: it must be rejected, or be of the same type, or change nothing."""
  fields = json.loads((intact / 'config.json').read_text())
  path, before = draw.choice(list(leaves(fields)))
  value = draw.choice(VALUES)

  def apply(damaged):
    node = fields
    for name in path[:-1]:
      node = node[name]
    node[path[-1]] = value
    (damaged / 'config.json').write_text(json.dumps(fields))
    model = tfm.from_pretrained(str(damaged))
    if describe(model) == describe_intact(intact):
      return
    # null stands for a default; several tokens may end a text.
    allowed = {json_type(before), 'null'} | ({'list'} if path[-1] == 'eos_token_id' else set())
    if before is not None and json_type(value) not in allowed:
      raise Silent(f'{before!r} became a {json_type(value)}')
    if isinstance(value, float) and not math.isfinite(value):
      raise Silent('it is not finite')
    evaluate(model)

  return f'{".".join(map(str, path))}={value!r:.60}', apply


def rename_field(intact: pathlib.Path, draw: random.Random) -> tuple[str, Callable]:
  """A field is missing, misspelt or added; the last two must be rejected."""
  fields = json.loads((intact / 'config.json').read_text())
  name, how = draw.choice(sorted(fields)), draw.choice(('missing', 'misspelt', 'added'))

  def apply(damaged):
    changed = dict(fields)
    if how == 'added':
      changed[f'{name}_2'] = changed[name]
    else:
      value = changed.pop(name)
      changed |= {f'{name}x': value} if how == 'misspelt' else {}
    (damaged / 'config.json').write_text(json.dumps(changed))
    model = tfm.from_pretrained(str(damaged))
    if how != 'missing':
      raise Silent('an unknown field')
    evaluate(model)

  return f'{name} {how}', apply


def change_tensor(intact: pathlib.Path, draw: random.Random) -> tuple[str, Callable]:
  """A tensor of another type or shape, or with numbers that are none."""
  tensors = safetensors.numpy.load_file(intact / 'model.safetensors')
  # A scalar has no axis to damage.
  name, how = draw.choice(sorted(name for name, x in tensors.items() if x.ndim)), draw.choice(sorted(TENSORS))
  return f'{name}: {how}', must_fail(tensors | {name: np.ascontiguousarray(TENSORS[how](tensors[name]))})


def rename_tensor(intact: pathlib.Path, draw: random.Random) -> tuple[str, Callable]:
  """A tensor is missing, or there is one more, whose name no family has."""
  tensors = safetensors.numpy.load_file(intact / 'model.safetensors')
  name, how = draw.choice(sorted(tensors)), draw.choice(('missing', 'added'))
  if how == 'added':
    return f'{name} added', must_fail(tensors | {f'more.{name}': tensors[name]})
  return f'{name} missing', must_fail({key: value for key, value in tensors.items() if key != name})


def must_fail(tensors: dict[str, np.ndarray]) -> Callable[[pathlib.Path], None]:
  """What writes tensors and expects that they are rejected."""

  def apply(damaged):
    safetensors.numpy.save_file(tensors, damaged / 'model.safetensors')
    tfm.from_pretrained(str(damaged))
    raise Silent('read without a word')

  return apply


def leaves(node: Any, path: tuple = ()) -> Iterator[tuple[tuple, Any]]:
  """Yields (path, value) of every field, objects and lists included."""
  for name, value in node.items() if isinstance(node, dict) else enumerate(node):
    yield (*path, name), value
    if isinstance(value, (dict, list)):
      yield from leaves(value, (*path, name))


def json_type(value: Any) -> str:
  kinds = {bool: 'bool', int: 'number', float: 'number', str: 'string', list: 'list', dict: 'object'}
  return kinds.get(type(value), 'null')


def describe(model: LoadedModel) -> tuple:
  """What config.json determines."""
  return model.config.to_json(), model.ids, model.output, model.vocab, model.source_vocab


@functools.cache
def describe_intact(folder: pathlib.Path) -> tuple:
  return describe(tfm.from_pretrained(str(folder)))


def evaluate(model: LoadedModel) -> None:
  """Raises `Silent` unless the outputs are numbers."""
  ids = np.ones((1, 4), np.int32)
  if model.config.model.patch:
    height, width, channels = model.experiment.source.image_shape
    arguments = dict(pixel_values=jnp.ones((1, channels, height, width)))
    if model.config.model.architecture == 'image_text':
      arguments['input_ids'] = np.full_like(ids, max(0, min(model.ids['eos'], model.vocab - 1)))
  else:
    arguments = dict(input_ids=ids)
    if model.config.model.architecture == 'encoder_decoder':
      arguments['decoder_input_ids'] = ids
  if not np.isfinite(model.logits(**arguments)).all():
    raise Silent('the outputs are not finite')
