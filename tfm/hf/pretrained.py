"""Loads a published checkpoint: its config.json becomes a config, its tensors become parameters."""

import logging
import pathlib
from typing import Any

import flax.linen as nn
import jax
from ml_collections import ConfigDict

from tfm.config import assemble
from tfm.config.assemble import Experiment
from tfm.data.special_tokens import extend_tokenizer
from tfm.data.tokenizers import marian
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.errors import importing_extra, parsing, read_json_object, require, suggest
from tfm.hf import checkpoint_tensors
from tfm.hf.families.protocol import Family
from tfm.hf.from_config import build_model, config_from_hf, find_family
from tfm.hf.loaded_model import LoadedModel
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.training import state as states


# What families call the output's own table, transposed.
OUTPUT_TABLES = (
  'lm_head.weight',
  'lm_head.decoder.weight',
  'cls.predictions.decoder.weight',
  'embed_out.weight',
  'vocab_projector.weight',
)
# Files of a tokenizer, next to the tensors.
TOKENIZER_FILES = (
  'tokenizer.json',
  'tokenizer_config.json',
  'special_tokens_map.json',
  'spiece.model',
  'tokenizer.model',
  'vocab.txt',
  'vocab.json',
  'merges.txt',
  'added_tokens.json',
  'chat_template.jinja',
  *marian.FILES,
  marian.TARGET_VOCAB,
)

_log = logging.getLogger(__name__)


def from_pretrained(
  path: str, dtype: str = 'float32', mesh: dict[str, int] | None = None, slices: dict[str, Any] = {}
) -> LoadedModel:
  """Loads a published checkpoint with config.json and model.safetensors (one file, or several with an index).

  Args:
    path: a local folder, or a name on the hub, which `huggingface_hub` downloads.
    dtype: of parameters and computation: float32, bfloat16, float16.
    mesh: axis → number of devices, as in config.mesh; None: a single device. Each process reads every tensor,
      one at a time, and its devices hold their parts.
    slices: as in config.slices.

  Raises:
    ValueError: for a path without a checkpoint, and an unsupported family, class, field or tensor, by name.
  """
  folder = locate_checkpoint(path)
  kind = 'the config of a published model'
  fields = read_json_object(folder / 'config.json', kind)
  family = find_family(fields, folder)
  with parsing(folder / 'config.json', kind):
    config, output, ids, vocab, source_vocab = config_from_hf(family, fields)
  stored = checkpoint_tensors.CheckpointTensors(folder)
  resolve_tying(config, output, family, stored)
  require(
    dtype in assemble.DTYPES, f'dtype={dtype!r} is not supported; {suggest(str(dtype), assemble.DTYPES)}'
  )
  config.model.dtype = dtype
  with parsing(folder / 'config.json', kind):
    model = build_model(config, vocab, source_vocab)
  device_mesh = meshes.make(mesh, **slices) if mesh else meshes.make(dict(data=1), jax.devices()[:1])
  rules = sharding.parse_rules(config.rules)
  boxed = jax.eval_shape(
    lambda key: states.init_params(model, key, 1, min(config.data.length, 16)), jax.random.key(0)
  )
  sharding.validate_divisibility(boxed, device_mesh, rules)
  abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, assemble.DTYPES[dtype]), nn.unbox(boxed))
  target = sharding.with_shardings(abstract, sharding.named_shardings(boxed, device_mesh, rules))
  params = checkpoint_tensors.load_params(
    stored, family.weights(config), target, family.prefix, family.ignored_tensors, family.unused_tensors
  )
  tokenizer, source_tokenizer = load_tokenizers(config, folder, bool(source_vocab))
  published = dict(family=family.model_type, output=output, ids=ids, vocab=vocab, source_vocab=source_vocab)
  return LoadedModel(
    experiment=Experiment(config),
    model=model,
    params=params,
    tokenizer=tokenizer,
    mesh=device_mesh,
    rules=rules,
    step=0,
    corpus='',
    source_tokenizer=source_tokenizer,
    published=published,
  )


def set_tokenizers(config: ConfigDict, folder: pathlib.Path, has_source_vocab: bool) -> None:
  """Sets the specs of the tokenizers that a published folder holds; images have none."""
  name = repr(str(folder.absolute()))
  if not config.model.patch or config.model.architecture == 'image_text':
    is_marian = all((folder / file).exists() for file in marian.FILES)
    config.data.tokenizer = f'{"marian" if is_marian else "published"}({name})'
  if has_source_vocab:
    config.data.source_tokenizer = f'marian({name}, sources=True)'


def load_tokenizers(
  config: ConfigDict, folder: pathlib.Path, has_source_vocab: bool
) -> tuple[Tokenizer | None, Tokenizer | None]:
  """The tokenizer and the source tokenizer of a folder, and their specs in the config; None for a folder
  without them, and for files that are not supported, which a warning says: ids need no tokenizer.
  """
  with_specs = config.copy_and_resolve_references()
  set_tokenizers(with_specs, folder, has_source_vocab)
  experiment = Experiment(with_specs)
  try:
    tokenizer, source_tokenizer = (
      one and one.train(()) for one in (experiment.tokenizer, experiment.source_tokenizer)
    )
  except ValueError as error:
    if any((folder / name).exists() for name in TOKENIZER_FILES):
      _log.warning('%s: its tokenizer is not supported, so the model reads ids alone: %s', folder, error)
    return None, None
  set_tokenizers(config, folder, has_source_vocab)
  return extend_tokenizer(tokenizer, experiment.objective.special_tokens), source_tokenizer


def resolve_tying(
  config: ConfigDict, output: str, family: Family, stored: checkpoint_tensors.CheckpointTensors
) -> None:
  """Sets whether the output is tied to the embedding, which only the tensors show; merges duplicates of a
  tied table and removes constants.

  Raises:
    ValueError: for copies of a tied table that differ, and constants with unexpected values.
  """
  tied_names = family.tied_names(config)
  for prefix in ('', family.prefix):
    stored.merge_duplicates([name.removeprefix(prefix) for name in tied_names])
    for name, values in family.constants(config):
      stored.remove_constant(name.removeprefix(prefix), values)
  if output != 'vocabulary':
    return
  if not family.lm_head:
    if config.model.tie_embeddings:
      table = next(weight.names for weight in family.weights(config) if weight.paths == 'embedding/table')
      table = table if table in stored.names else table.removeprefix(family.prefix)
      # Some files have the tied table again; others an output of their own, which ignoring would lose.
      stored.merge_duplicates([table, *(name for name in OUTPUT_TABLES if name in stored.names)])
    return
  if family.lm_head not in stored.names:
    config.model.tie_embeddings = True
  elif config.model.tie_embeddings and stored.are_equal(tied_names[0], family.lm_head):
    stored.merge_duplicates((tied_names[0], family.lm_head))
  else:
    config.model.tie_embeddings = False


def locate_checkpoint(path: str) -> pathlib.Path:
  """The local folder of a checkpoint; a path that is no local folder is downloaded from the hub by name.

  Raises:
    ValueError: if neither works.
  """
  folder = pathlib.Path(path).expanduser()
  if not folder.exists() and len(pathlib.PurePath(path).parts) == 2 and not path.startswith(('.', '/', '~')):
    with importing_extra('hub'):
      import huggingface_hub
    try:
      folder = pathlib.Path(
        huggingface_hub.snapshot_download(
          path, allow_patterns=['*.json', '*.safetensors', '*.txt', '*.model', '*.spm']
        )
      )
    except Exception as error:  # the library raises errors of many packages
      [reason, *_] = str(error).splitlines() or [type(error).__name__]
      raise ValueError(
        f'{path} is no local folder, and its download from the hub failed: {reason.strip()}'
      ) from error
  require((folder / 'config.json').is_file(), f'{path} has no config.json; use a published checkpoint')
  return folder
