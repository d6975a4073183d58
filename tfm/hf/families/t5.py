"""T5 1.0 and 1.1 (Raffel et al. 2020), and mT5 (Xue et al. 2021)."""

from tfm.hf.families.fields import GATED, PLAIN, Always, Both, Ignored, Only, Same, argument
from tfm.hf.families.protocol import Family, Weight, blocks, norm
from tfm.layers.mlp import FORMS
from tfm.spec import parse


def fields(output):
  yield from shared(layers=6, heads=8, hidden=2048, feed_forward='relu', vocab=32_128)
  yield Both(
    outputs,
    lambda config: dict(
      tie_word_embeddings=config['model.tie_embeddings'],
      scale_decoder_outputs=config['model.scale_embeddings'],
    ),
  )
  yield Same('decoder_start_token_id', 'ids.start', default=None)


def outputs(given):
  """Version 1.0 scales what becomes logits by 1/√D; so it is with a table of 1/√D times the numbers, which goes in
  times √D. Older files leave it to be known from the tie."""
  tied = given.take('tie_word_embeddings', True)
  return {'model.tie_embeddings': tied, 'model.scale_embeddings': given.take('scale_decoder_outputs', tied)}


def multilingual(output):
  yield from shared(layers=8, heads=6, hidden=1024, feed_forward='gated-gelu', vocab=250_112)
  yield Same('tie_word_embeddings', 'model.tie_embeddings', default=True)
  yield Always('model.scale_embeddings', False)
  yield Same('decoder_start_token_id', 'ids.start', default=0)


def shared(layers, heads, hidden, feed_forward, vocab):
  """What both have, with their defaults."""
  yield from (
    Always('model.architecture', 'encoder_decoder'),
    Both(
      lambda given: depths(given, layers),
      lambda config: dict(
        num_layers=config['model.encoder.layers'], num_decoder_layers=config['model.layers']
      ),
    ),
    Same('d_model', 'model.width', default=512),
    Same('num_heads', 'model.heads', default=heads),
    Both(attention, lambda config: dict(d_kv=config['model.head_width'])),
    Same('d_ff', 'model.feed_forward_width', default=hidden),
    Both(lambda given: activation(given, feed_forward), projection),
    Both(positions, buckets),
    Same('layer_norm_epsilon', 'model.norm', argument('rmsnorm', 'epsilon', 1e-6), default=1e-6),
    Both(dropout, lambda config: dict(dropout_rate=config['model.dropout.residual'])),
    Same('n_positions', 'data.length', default=512),
    Same('vocab_size', 'vocab', default=vocab),
    Same('eos_token_id', 'ids.eos', default=1),
    Same('pad_token_id', 'ids.pad', default=0),
    Only(is_encoder_decoder=True),
    Ignored('classifier_dropout'),
  )


def depths(given, usual):
  layers = given.take('num_layers', usual)
  deeper = given.take('num_decoder_layers', None)
  return {'model.encoder.layers': layers, 'model.layers': layers if deeper is None else deeper}


def attention(given):
  """Products are not scaled; queries start smaller instead."""
  width = given.take('d_kv', 64)
  return {
    'model.head_width': width,
    'model.mixer': f'softmax(query_init={width**-0.5:.4g})',
    'model.score': 'dot(scale=1.0)',
  }


def activation(given, usual):
  """Three fields of newer files, of which the first says the other two, but for which GELU it is that has a gate."""
  said = given.take('feed_forward_proj', usual)
  gated = given.take('is_gated_act', said.startswith('gated-'))
  name = given.take('dense_act_fn', 'gelu_new' if said == 'gated-gelu' else said.removeprefix('gated-'))
  try:
    return {'model.feed_forward': (GATED if gated else PLAIN).read(name)}
  except ValueError as error:
    raise ValueError(f'config.json: feed_forward_proj={said!r} with dense_act_fn={error}') from None


def projection(config):
  form = config['model.feed_forward']
  gated = form in FORMS and FORMS[form][1]
  try:
    name = 'gelu_new' if form == 'geglu_tanh' else (GATED if gated else PLAIN).write(form)
  except ValueError as error:
    raise ValueError(f'config.model.feed_forward={error}') from None
  said = f'gated-{"gelu" if name == "gelu_new" else name}' if gated else name
  return dict(feed_forward_proj=said, dense_act_fn=name, is_gated_act=gated)


def positions(given):
  kwargs = (
    f'buckets={given.take("relative_attention_num_buckets", 32)}, '
    f'max_distance={given.take("relative_attention_max_distance", 128)}'
  )
  return {'model.position': f't5({kwargs})', 'model.encoder.position': f't5({kwargs}, bidirectional=True)'}


def buckets(config):
  call = parse(config['model.position'])
  if call.name != 't5':
    raise ValueError(
      f'config.model.position={config["model.position"]!r} is not said by the family; {"t5"!r} would be'
    )
  told = dict(zip(('buckets', 'max_distance'), call.args)) | dict(call.kwargs)
  return dict(
    relative_attention_num_buckets=told.get('buckets', 32),
    relative_attention_max_distance=told.get('max_distance', 128),
  )


def dropout(given):
  return dict.fromkeys(
    (f'model.dropout.{place}' for place in ('embedding', 'attention', 'residual')),
    given.take('dropout_rate', 0.1),
  )


def weights(config):
  m = config.model
  scale = m.width**-0.5 if m.scale_embeddings else 1.0
  yield Weight('shared.weight', 'embedding/table', scale=scale)
  if not m.tie_embeddings:
    yield Weight('lm_head.weight', 'output/kernel', 'v d -> d v', scale=scale)
  yield from stack(
    config, 'encoder', 'model.encoder', m.encoder, dict(SelfAttention='mixer', DenseReluDense='feed_forward')
  )
  yield from stack(
    config,
    'decoder',
    'model',
    m,
    dict(SelfAttention='mixer', EncDecAttention='cross', DenseReluDense='feed_forward'),
  )


def stack(config, side, where, part, branches):
  """The blocks of one side, its last norm, and its table of distances, which the first block holds for all."""
  root = 'encoder/' if side == 'encoder' else ''
  yield from norm(f'{side}.final_layer_norm', f'{root}norm', bias=False)
  yield Weight(
    f'{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight', f'{root}position_0/table'
  )
  for i, block in enumerate(blocks(config, where)):
    for place, (theirs, ours) in enumerate(branches.items()):
      name, path = f'{side}.block.{i}.layer.{place}', f'{block}/{ours}'
      yield from norm(f'{name}.layer_norm', f'{path}_norm', bias=False)
      yield from (hidden if ours == 'feed_forward' else projections)(f'{name}.{theirs}', path, part)


def projections(name, path, section):
  for letter in 'qkv':
    yield Weight(
      f'{name}.{letter}.weight', f'{path}/{letter}/kernel', '(h c) d -> d h c', dict(h=section.heads)
    )
  yield Weight(f'{name}.o.weight', f'{path}/out/kernel', 'd (h c) -> h c d', dict(h=section.heads))


def hidden(name, path, section):
  gated = FORMS[section.feed_forward][1]
  for theirs, ours in (
    dict(wi_0='up', wi_1='gate', wo='down').items() if gated else dict(wi='up', wo='down').items()
  ):
    yield Weight(f'{name}.{theirs}.weight', f'{path}/{ours}/kernel', 'f d -> d f')


COMMON = dict(
  weights=weights,
  twins=lambda config: TWINS,
  head='lm_head.weight',
  ignored=r'decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight',
)
TWINS = 'shared.weight', 'encoder.embed_tokens.weight', 'decoder.embed_tokens.weight'
FAMILIES = (
  Family(
    model_type='t5',
    fields=fields,
    architectures={
      'T5ForConditionalGeneration': 'vocabulary',
      'T5WithLMHeadModel': 'vocabulary',
      'T5Model': 'features',
    },
    **COMMON,
  ),
  Family(
    model_type='mt5',
    fields=multilingual,
    architectures={'MT5ForConditionalGeneration': 'vocabulary', 'MT5Model': 'features'},
    **COMMON,
  ),
)
