"""Reads config.json: finds its family, and builds the config and the model that it describes."""

import functools
import importlib
import pathlib
import pkgutil
from typing import Annotated, Any

from annotated_types import Interval
from ml_collections import ConfigDict

import tfm.hf.families
from tfm import variant_folders
from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.errors import require, suggest
from tfm.hf.families.protocol import Family
from tfm.models.trunk import Trunk
from tfm.spec import MAX_SIZE, Size, shorten, unsuitable_reason


# (architecture, output of a published class) → our objective.
OBJECTIVES = {
  ('decoder', 'vocabulary'): 'causal_lm',
  ('decoder', 'features'): 'causal_lm',
  ('encoder', 'vocabulary'): 'masked_lm',
  ('encoder', 'features'): 'masked_lm',
  ('encoder', 'classes'): 'classification({classes})',
  ('encoder', 'token_classes'): 'classification({classes}, words=True)',
  ('encoder_decoder', 'vocabulary'): 'seq2seq',
  ('encoder_decoder', 'features'): 'seq2seq',
  ('image_text', 'pairs'): 'contrastive',
}
PACKINGS = {
  'masked_lm': 'concat',
  'causal_lm': 'concat',
  'seq2seq': 'padded',
  'classification': 'each',
  'contrastive': 'each',
}


# A special token: files have -1 for one that the tokenizer lacks, and several tokens may end a text.
TokenId = Annotated[int, Interval(ge=-1, le=MAX_SIZE)]
TokenIds = TokenId | None | tuple[TokenId, ...]


@functools.cache
def load_families() -> dict[str, Family]:
  """Imports every file of `tfm.hf.families`; model_type → family."""
  families = {}
  for info in pkgutil.iter_modules(variant_folders.extend_path(tfm.hf.families)):
    module = importlib.import_module(f'tfm.hf.families.{info.name}')
    for family in getattr(module, 'FAMILIES', ()):
      families[family.model_type] = family
  return families


def find_family(fields: dict[str, Any], folder: pathlib.Path) -> Family:
  """The family of a config.json.

  Raises:
    ValueError: for an unknown model_type, with the known ones.
  """
  name = fields.get('model_type')
  require(
    isinstance(name, str) and name in load_families(),
    f'{folder}: model_type={name!r} is not supported; {suggest(str(name), load_families())}',
  )
  return load_families()[name]


def config_from_hf(
  family: Family, fields: dict[str, Any]
) -> tuple[ConfigDict, str, dict[str, Any], int, int]:
  """Converts a config.json.

  Returns:
    The resolved config; the output, one of `tfm.hf.families.protocol.OUTPUTS`; the ids of special tokens; the
    size of the vocabulary; and the size of a separate source vocabulary (0: none).
  """
  flat, output = family.read(fields)
  for path, name in dict(vocab='vocab_size', source_vocab='vocab_size', classes='num_labels').items():
    reason = unsuitable_reason(flat.get(path, 1), Size)
    require(not reason, f'{name}={flat.get(path)!r} {reason}')
  vocab, source_vocab, classes = (flat.pop(path, 0) for path in ('vocab', 'source_vocab', 'classes'))
  ids = {path.removeprefix('ids.'): flat.pop(path) for path in [*flat] if path.startswith('ids.')}
  for name, value in ids.items():
    reason = unsuitable_reason(value, TokenIds)
    require(not reason, f'config.json: {name}_token_id={shorten(value)} {reason}')
  architecture = flat.get('model.architecture', 'decoder')
  objective = flat.setdefault('objective', OBJECTIVES[architecture, output].format(classes=classes))
  flat.setdefault('data.packing', PACKINGS[objective.partition('(')[0]])
  flat.setdefault('model.vocab_multiple', 1)
  return resolve_config(complete(nest(flat))), output, ids, vocab, source_vocab


def build_model(config: ConfigDict, vocab: int, source_vocab: int = 0) -> Trunk:
  """The model of a config with `vocab` tokens, which include the objective's special tokens."""
  experiment = Experiment(config)
  return experiment.build_model(vocab - len(experiment.objective.special_tokens), source_vocab=source_vocab)


def nest(flat: dict[str, Any]) -> dict[str, Any]:
  """{'a.b': 1} → {'a': {'b': 1}}."""
  root = {}
  for path, value in flat.items():
    *parents, name = path.split('.')
    node = root
    for parent in parents:
      node = node.setdefault(parent, {})
    node[name] = value
  return root
