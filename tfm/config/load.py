"""Config files: read, completed, shrunk to a smoke test, written as JSON."""

import json
import pathlib
from collections.abc import Mapping

from ml_collections import ConfigDict

from tfm.config.overlay import complete, overlay
from tfm.config.schema import default_config, parts
from tfm.errors import require
from tfm.spec import load_function


def load_config(file: str) -> ConfigDict:
  """The config of `FILE` or `FILE:args`, complete, with those of further ones, `FILE+FILE:args`, laid over it; the argument
  `smoke` shrinks any config.

  Raises:
    ValueError: if a file is missing, has no `get_config`, or sets a field that is not there.
  """
  config, small = default_config(), False
  for i, part in enumerate(file.split('+')):
    path, _, text = part.partition(':')
    args = [arg for arg in text.split(',') if arg]
    small |= 'smoke' in args
    own = ','.join(arg for arg in args if arg != 'smoke')
    given = (
      read_json(path, own) if path.endswith('.json') else load_function(path, 'get_config', '--config=')(own)
    )
    require(
      i == 0 or not path.endswith('.json'),
      f'--config={file} lays a whole run, {path}, over another config; name it first',
    )
    config = overlay(config, given)
  return smoke(config) if small else config


def read_json(path: str, args: str = '') -> Mapping:
  """The config that a run left behind.

  Raises:
    ValueError: if there is no such file, it is no config, or there are arguments, of which it takes none.
  """
  require(not args, f"--config={path}:{args} takes no argument but 'smoke'")
  try:
    given = json.loads(pathlib.Path(path).read_text())
  except (OSError, ValueError) as error:
    raise ValueError(f'--config={path} cannot be read: {error}') from error
  require(
    isinstance(given, dict) and 'model' in given,
    f'--config={path} is no config of a run; DIR/config.json of a --workdir is',
  )
  return given


def smoke(config: ConfigDict) -> ConfigDict:
  """The same run in miniature: a few steps of a tiny model, seconds on a CPU, every slot kept."""
  config = complete(config)
  model, training = config.model, config.training
  # Multi-head, grouped-query and multi-query attention stay what they are.
  for part in reversed(parts(config).values()):
    if part.kv_heads is not None:
      part.kv_heads = 1 if part.kv_heads == 1 else 2 if part.kv_heads < (part.heads or model.heads) else 4
    part.update({field: None for field in ('heads', 'head_width', 'feed_forward_width') if field in part})
    if 'pattern' in part:
      part.layers = max(2, len(part.pattern))
  lifted = model.embedding_width not in (None, model.width)
  model.update(width=32, heads=4, embedding_width=16 if lifted else None)
  if not model.patch:  # an image has as many tokens as it has
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
