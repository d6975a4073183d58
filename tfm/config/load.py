"""Config files: read, completed, shrunk to a smoke test, written as JSON."""

import json
import pathlib
from collections.abc import Mapping

from ml_collections import ConfigDict

from tfm.config.library import CONFIGS, find_file, load_function
from tfm.config.overlay import complete, overlay
from tfm.config.schema import default_config, parts
from tfm.errors import read_json_object, require


def load_config(file: str) -> ConfigDict:
  """The complete config of `FILE` or `FILE:args`, overlaid by those of further files, `FILE+FILE:args`; the
  argument `smoke` shrinks any config. A file is a path, or a name that `tfm configs` lists.

  Raises:
    ValueError: if a file is missing, has no `get_config`, or sets an unknown field.
  """
  config, is_smoke = default_config(), False
  for i, part in enumerate(file.split('+')):
    name, _, text = part.partition(':')
    path = find_file(name, CONFIGS, '--config=')
    args = [arg for arg in text.split(',') if arg]
    is_smoke |= 'smoke' in args
    own_args = ','.join(arg for arg in args if arg != 'smoke')
    given = (
      read_json(path, own_args)
      if path.endswith('.json')
      else load_function(path, 'get_config', '--config=', ['smoke'])(own_args)
    )
    require(
      i == 0 or not path.endswith('.json'),
      f'--config={file} overlays another config with the complete config {path}; name that file first',
    )
    require(
      isinstance(given, (Mapping, ConfigDict)),
      f'--config={part} returns a value of type {type(given).__name__}; '
      'get_config(arg) must return a ConfigDict',
    )
    dotted = next((name for name in given if '.' in str(name)), '')
    require(not dotted, f'--config={part} returns a name with dots, {dotted!r}; nest it: config.{dotted} = …')
    try:
      config = overlay(config, given)
    except RecursionError:
      raise ValueError(f'--config={part} returns a config that contains itself; remove that entry') from None
  return smoke(config) if is_smoke else config


def read_json(path: str, args: str = '') -> Mapping:
  """Reads the config.json of a run.

  Raises:
    ValueError: if the file is missing or no config, or if there are arguments.
  """
  require(not args, f"--config={path}:{args} takes no argument but 'smoke'")
  try:
    given = read_json_object(pathlib.Path(path), 'the config of a run')
  except OSError as error:
    raise ValueError(f'--config={path} cannot be read: {error}') from error
  require('model' in given, f'--config={path} is not the config of a run; use DIR/config.json of a --workdir')
  return given


def smoke(config: ConfigDict) -> ConfigDict:
  """A tiny version of the run: a few steps of a small model, seconds on a CPU, with the same slots."""
  config = complete(config)
  model, training = config.model, config.training
  # Multi-head, grouped-query and multi-query attention stay of their kind.
  for part in reversed(parts(config).values()):
    if part.kv_heads is not None:
      part.kv_heads = 1 if part.kv_heads == 1 else 2 if part.kv_heads < (part.heads or model.heads) else 4
    part.update({field: None for field in ('heads', 'head_width', 'feed_forward_width') if field in part})
    if 'pattern' in part:
      part.layers = max(2, len(part.pattern))
  if 'width' in model.encoder:
    model.encoder.width = None
  lifted = model.embedding_width not in (None, model.width)
  model.update(width=32, heads=4, embedding_width=16 if lifted else None)
  if not model.patch:  # the number of patches of an image is fixed
    config.data.length = min(config.data.length, 32)
  training.gradient_accumulation = min(training.gradient_accumulation, 2)
  training.update(
    steps=4,
    batch_size=8 * training.gradient_accumulation,
    log_every=1,
    evaluate_every=2,
    evaluation_batches=1,
    profile=0,
  )
  config.optimizer.warmup = min(config.optimizer.warmup, 2)
  config.decoding.average_checkpoints = min(config.decoding.average_checkpoints, 2)
  return config


def to_json(config: ConfigDict) -> str:
  """Readable JSON."""
  return json.dumps(config.to_dict(), indent=2) + '\n'
