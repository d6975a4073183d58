"""Marian (Junczys-Dowmunt et al. 2018), the implementation of OPUS-MT: the original Transformer."""

import numpy as np

from tfm.hf.families import bart
from tfm.hf.families._config_fields import ConfigConstant, CustomField, MappedField, SupportedValues
from tfm.hf.families.protocol import Family, Weight
from tfm.layers.rotary import frequencies


# The tokenizer of a separate source vocabulary; `tfm import` sets its folder.
SOURCE_TOKENIZER = "marian('', sources=True)"


def fields(output):
  yield from bart.shared(output, activation='gelu', start=58_100, vocab=58_101)
  yield from (
    MappedField('max_position_embeddings', 'data.length', default=1024),
    CustomField(read_vocabularies, write_vocabularies),
    MappedField('eos_token_id', 'ids.eos', default=0),
    MappedField('pad_token_id', 'ids.pad', default=58_100),
    ConfigConstant('model.position', 'sinusoidal(interleaved=False)'),
    SupportedValues(normalize_embedding=False, static_position_embeddings=True),
  )


def read_vocabularies(hf_config):
  """One shared vocabulary, whose size has two names, or one of sources and one of targets."""
  size, shared = hf_config.get('vocab_size', 58_101), hf_config.get('share_encoder_decoder_embeddings', True)
  targets = hf_config.get('decoder_vocab_size', None) or size
  if not shared:
    return {'vocab': targets, 'source_vocab': size, 'data.source_tokenizer': SOURCE_TOKENIZER}
  if targets != size:
    raise ValueError(
      f'config.json: decoder_vocab_size={targets} is not supported with vocab_size={size}; use equal '
      'sizes, or share_encoder_decoder_embeddings=False'
    )
  return {}


def write_vocabularies(config):
  return dict(
    vocab_size=config['source_vocab'] or config['vocab'],
    decoder_vocab_size=config['vocab'],
    share_encoder_decoder_embeddings=not config['source_vocab'],
  )


def weights(config):
  if config.data.source_tokenizer:
    yield Weight('model.encoder.embed_tokens.weight', 'source_embedding/table')
  yield Weight(tied_names(config)[0], 'embedding/table')
  yield from bart.layers(config)


def tied_names(config):
  """The output is tied to the embedding of the targets."""
  return (
    ('model.decoder.embed_tokens.weight', 'lm_head.weight')
    if config.data.source_tokenizer
    else bart.TIED_NAMES
  )


def constants(config):
  """Sines, then cosines, which a published checkpoint may store."""
  angles = np.arange(config.data.length)[:, None] * frequencies(10_000, config.model.width)[None]
  table = np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)
  for side in bart.SIDES:
    yield f'model.{side}.embed_positions.weight', table


FAMILIES = (
  Family(
    model_type='marian',
    fields=fields,
    weights=weights,
    prefix='model.',
    tied_names=tied_names,
    constants=constants,
    architectures={'MarianMTModel': 'vocabulary', 'MarianModel': 'features'},
  ),
)
