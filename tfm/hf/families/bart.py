"""BART (Lewis et al. 2020)."""

from tfm.hf.families.fields import PLAIN, Always, Both, Ignored, Only, Same, learned
from tfm.hf.families.protocol import Family, Weight, blocks, both, norm


def fields(output):
  yield from shared(output, activation='gelu', start=2, vocab=50_265)
  yield learned('max_position_embeddings', default=1024)
  yield from (
    Same('eos_token_id', 'ids.eos', default=2),
    Same('pad_token_id', 'ids.pad', default=1),
    Always('model.embedding_norm', True),
    Only(normalize_embedding=True, static_position_embeddings=False, extra_pos_embeddings=2),
  )


def shared(output, activation, start, vocab):
  """What BART and Marian have in common, with their defaults."""
  yield from (
    Always('model.architecture', 'encoder_decoder'),
    Both(depth, lambda config: dict(encoder_layers=config['model.encoder.layers'])),
    Same('decoder_layers', 'model.layers', default=12),
    Same('d_model', 'model.width', default=1024),
    Same('encoder_attention_heads', 'model.encoder.heads', default=16),
    Same('decoder_attention_heads', 'model.heads', default=16),
    Same('encoder_ffn_dim', 'model.encoder.feed_forward_width', default=4096),
    Same('decoder_ffn_dim', 'model.feed_forward_width', default=4096),
    Same('activation_function', 'model.feed_forward', PLAIN, default=activation),
    Same('scale_embedding', 'model.scale_embeddings', default=False),
    Both(dropout, lambda config: dict(dropout=config['model.dropout.residual'])),
    Same('attention_dropout', 'model.dropout.attention', default=0.0),
    Same('vocab_size', 'vocab', default=vocab),
    Same('decoder_start_token_id', 'ids.start', default=start),
    Always('model.norm', 'layernorm'),
    Always('model.norm_placement', 'post'),
    Always('model.bias', True),
    Always('model.tie_embeddings', True),
    Always('model.output_bias', output == 'vocabulary'),
    Only(
      is_encoder_decoder=True,
      tie_word_embeddings=True,
      normalize_before=False,
      add_final_layer_norm=False,
      add_bias_logits=False,
    ),
    Ignored(
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


def depth(given):
  """Of the encoder, under one name or two."""
  layers = given.take('encoder_layers', 12)
  if (other := given.take('num_hidden_layers', layers)) != layers:
    raise ValueError(
      f'config.json: num_hidden_layers={other} and encoder_layers={layers} are two names of one number'
    )
  return {'model.encoder.layers': layers}


def dropout(given):
  return dict.fromkeys(('model.dropout.embedding', 'model.dropout.residual'), given.take('dropout', 0.1))


def weights(config):
  yield Weight('model.shared.weight', 'embedding/table')
  for side, root in SIDES.items():
    # Positions count from 2, the number of a token of padding and one more.
    yield Weight(f'model.{side}.embed_positions.weight', f'{root}position_0/table', skip=2)
    yield from norm(f'model.{side}.layernorm_embedding', f'{root}embedding_norm', bias=True)
  yield from layers(config)


SIDES = {'encoder': 'encoder/', 'decoder': ''}


def layers(config):
  """The blocks of both sides and the biases of the output."""
  m = config.model
  if m.output_bias:
    yield Weight('final_logits_bias', 'bias/bias', '1 v -> v')
  for side, where, part, branches in (
    ('encoder', 'model.encoder', m.encoder, dict(self_attn='mixer')),
    ('decoder', 'model', m, dict(self_attn='mixer', encoder_attn='cross')),
  ):
    for i, block in enumerate(blocks(config, where)):
      name = f'model.{side}.layers.{i}'
      for theirs, ours in branches.items():
        yield from attention(f'{name}.{theirs}', f'{block}/{ours}', m.cross if ours == 'cross' else part)
        yield from norm(f'{name}.{theirs}_layer_norm', f'{block}/{ours}_norm', bias=True)
      for theirs, ours in dict(fc1='up', fc2='down').items():
        yield from both(f'{name}.{theirs}', f'{block}/feed_forward/{ours}', 'o d -> d o', bias=True)
      yield from norm(f'{name}.final_layer_norm', f'{block}/feed_forward_norm', bias=True)


def attention(name, path, section):
  for letter in 'qkv':
    yield from both(
      f'{name}.{letter}_proj', f'{path}/{letter}', '(h c) d -> d h c', bias=True, sizes=dict(h=section.heads)
    )
  yield Weight(f'{name}.out_proj.weight', f'{path}/out/kernel', 'd (h c) -> h c d', dict(h=section.heads))
  yield Weight(f'{name}.out_proj.bias', f'{path}/out/bias')


TWINS = (
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
    twins=lambda config: TWINS,
    architectures={'BartForConditionalGeneration': 'vocabulary', 'BartModel': 'features'},
    ignored=r'(model\.)?(encoder|decoder)\.version',
  ),
)
