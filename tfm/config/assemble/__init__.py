"""Config → objects: the one place where spec strings become modules, and where a bad run is refused."""

from tfm.config.assemble.blocks import DTYPES, block, position
from tfm.config.assemble.models import model
from tfm.config.assemble.named import named, one_of
from tfm.config.assemble.recipe import (
  frozen,
  intervals,
  lora,
  objective,
  optimizer,
  packing,
  penalty,
  source,
  source_tokenizer,
  tokenizer,
)


__all__ = (
  'DTYPES',
  'block',
  'frozen',
  'intervals',
  'lora',
  'model',
  'named',
  'objective',
  'one_of',
  'optimizer',
  'packing',
  'penalty',
  'position',
  'source',
  'source_tokenizer',
  'tokenizer',
)
