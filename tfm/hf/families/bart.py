"""BART (Lewis et al. 2020)."""

from tfm.hf.families._config_fields import (
  ConfigConstant,
  CustomField,
  IgnoredFields,
  MappedField,
  SupportedValues,
  learned_position,
)
from tfm.hf.families._field_converters import ACTIVATIONS
from tfm.hf.families.protocol import Family, Weight, block_paths, linear, norm


def fields(output):
  yield from shared(output, activation='gelu', start=2, vocab=50_265)
  yield learned_position('max_position_embeddings', default=1024)
  yield from (
    MappedField('eos_token_id', 'ids.eos', default=2),
    MappedField('pad_token_id', 'ids.pad', default=1),
    ConfigConstant('model.embedding_norm', True),
    SupportedValues(normalize_embedding=True, static_position_embeddings=False, extra_pos_embeddings=2),
  )


def shared(output, activation, start, vocab):
  """The fields that BART and Marian share, with their defaults."""
  yield from (
    ConfigConstant('model.architecture', 'encoder_decoder'),
    CustomField(read_depth, lambda config: dict(encoder_layers=config['model.encoder.layers'])),
    MappedField('decoder_layers', 'model.layers', default=12),
    MappedField('d_model', 'model.width', default=1024),
    MappedField('encoder_attention_heads', 'model.encoder.heads', default=16),
    MappedField('decoder_attention_heads', 'model.heads', default=16),
    MappedField('encoder_ffn_dim', 'model.encoder.feed_forward_width', default=4096),
    MappedField('decoder_ffn_dim', 'model.feed_forward_width', default=4096),
    MappedField('activation_function', 'model.feed_forward', ACTIVATIONS, default=activation),
    MappedField('scale_embedding', 'model.scale_embeddings', default=False),
    CustomField(read_dropout, lambda config: dict(dropout=config['model.dropout.residual'])),
    MappedField('attention_dropout', 'model.dropout.attention', default=0.0),
    MappedField('vocab_size', 'vocab', default=vocab),
    MappedField('decoder_start_token_id', 'ids.start', default=start),
    ConfigConstant('model.norm', 'layernorm'),
    ConfigConstant('model.norm_placement', 'post'),
    ConfigConstant('model.bias', True),
    ConfigConstant('model.tie_embeddings', True),
    ConfigConstant('model.output_bias', output == 'vocabulary'),
    SupportedValues(
      is_encoder_decoder=True,
      tie_word_embeddings=True,
      normalize_before=False,
      add_final_layer_norm=False,
      add_bias_logits=False,
    ),
    IgnoredFields(
      'activation_dropout',
      'encoder_layerdrop',
      'decoder_layerdrop',
      'classif_dropout',
      '_num_labels',
      'force_bos_token_to_be_generated',
      'replacing_rate',
      'save_step',
      'student_encoder_layers',
      'student_decoder_layers',
    ),
  )


def read_depth(hf_config):
  """The encoder's depth, which has two names."""
  layers = hf_config.get('encoder_layers', 12)
  if (other := hf_config.get('num_hidden_layers', layers)) != layers:
    raise ValueError(
      f'config.json: num_hidden_layers={other} contradicts encoder_layers={layers}, the same '
      'number; keep one of them'
    )
  return {'model.encoder.layers': layers}


def read_dropout(hf_config):
  return dict.fromkeys(('model.dropout.embedding', 'model.dropout.residual'), hf_config.get('dropout', 0.1))


def weights(config):
  yield Weight('model.shared.weight', 'embedding/table')
  for side, root in SIDES.items():
    # Positions start at 2, the padding id plus one.
    yield Weight(f'model.{side}.embed_positions.weight', f'{root}position_0/table', skip_rows=2)
    yield from norm(f'model.{side}.layernorm_embedding', f'{root}embedding_norm', bias=True)
  yield from layers(config)


SIDES = {'encoder': 'encoder/', 'decoder': ''}


def layers(config):
  """The blocks of encoder and decoder, and the bias of the output."""
  m = config.model
  if m.output_bias:
    yield Weight('final_logits_bias', 'bias/bias', '1 v -> v')
  for side, where, part, branches in (
    ('encoder', 'model.encoder', m.encoder, dict(self_attn='mixer')),
    ('decoder', 'model', m, dict(self_attn='mixer', encoder_attn='cross')),
  ):
    for i, block in enumerate(block_paths(config, where)):
      name = f'model.{side}.layers.{i}'
      for hf_name, tfm_name in branches.items():
        yield from attention(
          f'{name}.{hf_name}', f'{block}/{tfm_name}', m.cross if tfm_name == 'cross' else part
        )
        yield from norm(f'{name}.{hf_name}_layer_norm', f'{block}/{tfm_name}_norm', bias=True)
      for hf_name, tfm_name in dict(fc1='up', fc2='down').items():
        yield from linear(f'{name}.{hf_name}', f'{block}/feed_forward/{tfm_name}', 'o d -> d o', bias=True)
      yield from norm(f'{name}.final_layer_norm', f'{block}/feed_forward_norm', bias=True)


def attention(name, path, section):
  for letter in 'qkv':
    yield from linear(
      f'{name}.{letter}_proj', f'{path}/{letter}', '(h c) d -> d h c', bias=True, sizes=dict(h=section.heads)
    )
  yield Weight(f'{name}.out_proj.weight', f'{path}/out/kernel', 'd (h c) -> h c d', dict(h=section.heads))
  yield Weight(f'{name}.out_proj.bias', f'{path}/out/bias')


TIED_NAMES = (
  'model.shared.weight',
  'model.encoder.embed_tokens.weight',
  'model.decoder.embed_tokens.weight',
  'lm_head.weight',
)
FAMILIES = (
  Family(
    model_type='bart',
    fields=fields,
    weights=weights,
    prefix='model.',
    tied_names=lambda config: TIED_NAMES,
    architectures={'BartForConditionalGeneration': 'vocabulary', 'BartModel': 'features'},
    ignored_tensors=r'(model\.)?(encoder|decoder)\.version',
  ),
)
