"""Marian (Junczys-Dowmunt et al. 2018), of which OPUS-MT is made: the first Transformer."""

import numpy as np

from tfm.families import bart
from tfm.families.fields import Always, Both, Only, Same
from tfm.families.protocol import Family
from tfm.layers.rotary import frequencies


def fields(output):
  yield from bart.shared(output, activation='gelu', start=58_100, vocab=58_101)
  yield from (
    Same('max_position_embeddings', 'data.length', default=1024),
    Both(vocabularies, lambda config: dict(decoder_vocab_size=config['vocab'])),
    Same('eos_token_id', 'ids.eos', default=0),
    Same('pad_token_id', 'ids.pad', default=58_100),
    Always('model.position', 'sinusoidal(interleaved=False)'),
    Only(share_encoder_decoder_embeddings=True, normalize_embedding=False, static_position_embeddings=True),
  )


def vocabularies(given):
  """One, whose size has two names."""
  size = given.take('vocab_size', 58_101)
  if (given.take('decoder_vocab_size', None) or size) != size:
    raise ValueError(f"config.json: decoder_vocab_size={given.take('decoder_vocab_size')} is not understood beside "
                     f'vocab_size={size}; one vocabulary for both is')
  return {}


def constants(config):
  """Sines and then cosines, which the published class stores, or makes again."""
  angles = np.arange(config.data.length)[:, None] * frequencies(10_000, config.model.width)[None]
  waves = np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)
  for side in bart.SIDES:
    yield f'model.{side}.embed_positions.weight', waves


FAMILIES = (Family(
  model_type='marian', fields=fields, weights=bart.layers, prefix='model.', twins=bart.TWINS, constants=constants,
  architectures={'MarianMTModel': 'vocabulary', 'MarianModel': 'features'}),)
