"""What a config.json declares: its family, and a config and a model of ours."""

import functools
import importlib
import pathlib
import pkgutil
from typing import Any

from ml_collections import ConfigDict

import tfm.hf.families
from tfm.config import assemble
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.errors import require, suggest
from tfm.hf.families.protocol import Family
from tfm.models.trunk import Trunk


# What a class of the published implementation answers → our objective, by architecture.
OBJECTIVES = {
  ('decoder', 'vocabulary'): 'causal_lm',
  ('decoder', 'features'): 'causal_lm',
  ('encoder', 'vocabulary'): 'masked_lm',
  ('encoder', 'features'): 'masked_lm',
  ('encoder', 'classes'): 'classification({classes})',
  ('encoder', 'classes of words'): 'classification({classes}, words=True)',
  ('encoder_decoder', 'vocabulary'): 'seq2seq',
  ('encoder_decoder', 'features'): 'seq2seq',
}
PACKINGS = {'masked_lm': 'concat', 'causal_lm': 'concat', 'seq2seq': 'padded', 'classification': 'each'}


@functools.cache
def families() -> dict[str, Family]:
  """Every family by what config.json calls it."""
  found = {}
  for info in pkgutil.iter_modules(tfm.hf.families.__path__):
    module = importlib.import_module(f'tfm.hf.families.{info.name}')
    for family in getattr(module, 'FAMILIES', ()):
      found[family.model_type] = family
  return found


def family_of(fields: dict[str, Any], folder: pathlib.Path) -> Family:
  """The family of a config.json.

  Raises:
    ValueError: if there is none, with those there are.
  """
  name = fields.get('model_type')
  require(
    name in families(),
    f'{folder}: model_type={name!r} is no family that is read; {suggest(str(name), families())}',
  )
  return families()[name]


def declared(family: Family, fields: dict[str, Any]) -> tuple[ConfigDict, str, dict[str, Any], int, int]:
  """The config that a config.json is, what its class answers, the ids of its tokens, how many there are, and of a source's
  own (0: it has none)."""
  found, output = family.read(fields)
  vocab, source_vocab, classes = (found.pop(name, 0) for name in ('vocab', 'source_vocab', 'classes'))
  ids = {path.removeprefix('ids.'): found.pop(path) for path in [*found] if path.startswith('ids.')}
  kind = found.get('model.architecture', 'decoder')
  objective = found.setdefault('objective', OBJECTIVES[kind, output].format(classes=classes))
  found.setdefault('data.packing', PACKINGS[objective.partition('(')[0]])
  found.setdefault('model.vocab_multiple', 1)
  return resolve_config(complete(nested(found))), output, ids, vocab, source_vocab


def model_of(config: ConfigDict, vocab: int, source_vocab: int = 0) -> Trunk:
  """The model of a config whose tokens, those that an objective wants among them, are `vocab`."""
  return assemble.model(config, vocab - len(assemble.objective(config).special_tokens), source_vocab=source_vocab)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
  """{'a.b': 1} → {'a': {'b': 1}}."""
  made = {}
  for path, value in flat.items():
    *above, name = path.split('.')
    node = made
    for part in above:
      node = node.setdefault(part, {})
    node[name] = value
  return made
