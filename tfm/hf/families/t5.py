"""T5 1.0 and 1.1 (Raffel et al. 2020), and mT5 (Xue et al. 2021)."""

from tfm.hf.families._config_fields import (
  ConfigConstant,
  CustomField,
  IgnoredFields,
  MappedField,
  SupportedValues,
)
from tfm.hf.families._field_converters import ACTIVATIONS, GATED_ACTIVATIONS, spec_argument
from tfm.hf.families.protocol import Family, Weight, block_paths, norm
from tfm.spec import parse


def fields(output):
  yield from shared(layers=6, heads=8, hidden=2048, feed_forward='relu', vocab=32_128)
  yield CustomField(
    read_output,
    lambda config: dict(
      tie_word_embeddings=config['model.tie_embeddings'],
      scale_decoder_outputs=config['model.scale_embeddings'],
    ),
  )
  yield MappedField('decoder_start_token_id', 'ids.start', default=None)


def read_output(hf_config):
  """Whether the output is tied and scaled.

  Version 1.0 scales the input of the output layer by 1/√D. We store the table times 1/√D and scale embeddings
  by √D. Older files lack the field; scaling then equals tying.
  """
  tied = hf_config.get('tie_word_embeddings', True)
  return {
    'model.tie_embeddings': tied,
    'model.scale_embeddings': hf_config.get('scale_decoder_outputs', tied),
  }


def fields_mt5(output):
  yield from shared(layers=8, heads=6, hidden=1024, feed_forward='gated-gelu', vocab=250_112)
  yield MappedField('tie_word_embeddings', 'model.tie_embeddings', default=True)
  yield ConfigConstant('model.scale_embeddings', False)
  yield MappedField('decoder_start_token_id', 'ids.start', default=0)


def shared(layers, heads, hidden, feed_forward, vocab):
  """The fields that T5 and mT5 share, with their defaults."""
  yield from (
    ConfigConstant('model.architecture', 'encoder_decoder'),
    CustomField(
      lambda hf_config: read_depths(hf_config, layers),
      lambda config: dict(
        num_layers=config['model.encoder.layers'], num_decoder_layers=config['model.layers']
      ),
    ),
    MappedField('d_model', 'model.width', default=512),
    MappedField('num_heads', 'model.heads', default=heads),
    CustomField(read_attention, lambda config: dict(d_kv=config['model.head_width'])),
    MappedField('d_ff', 'model.feed_forward_width', default=hidden),
    CustomField(lambda hf_config: read_activation(hf_config, feed_forward), write_activation),
    CustomField(read_positions, write_positions),
    MappedField('layer_norm_epsilon', 'model.norm', spec_argument('rmsnorm', 'epsilon', 1e-6), default=1e-6),
    CustomField(read_dropout, lambda config: dict(dropout_rate=config['model.dropout.residual'])),
    MappedField('n_positions', 'data.length', default=512),
    MappedField('vocab_size', 'vocab', default=vocab),
    MappedField('eos_token_id', 'ids.eos', default=1),
    MappedField('pad_token_id', 'ids.pad', default=0),
    SupportedValues(is_encoder_decoder=True),
    IgnoredFields('classifier_dropout'),
  )


def read_depths(hf_config, default):
  layers = hf_config.get('num_layers', default)
  decoder_layers = hf_config.get('num_decoder_layers', None)
  return {
    'model.encoder.layers': layers,
    'model.layers': layers if decoder_layers is None else decoder_layers,
  }


def read_attention(hf_config):
  """Dot products are not scaled; the initialization of queries is."""
  width = hf_config.get('d_kv', 64)
  return {
    'model.head_width': width,
    'model.mixer': f'softmax(query_init_scale={width**-0.5:.4g})',
    'model.score': 'dot(scale=1.0)',
  }


def read_activation(hf_config, default):
  """The activation; newer files have three fields, the first of which implies the others except for the GELU
  variant.
  """
  form = hf_config.get('feed_forward_proj', default)
  is_gated = hf_config.get('is_gated_act', form.startswith('gated-'))
  name = hf_config.get('dense_act_fn', 'gelu_new' if form == 'gated-gelu' else form.removeprefix('gated-'))
  try:
    return {'model.feed_forward': (GATED_ACTIVATIONS if is_gated else ACTIVATIONS).read(name)}
  except ValueError as error:
    raise ValueError(f'config.json: feed_forward_proj={form!r} with dense_act_fn={error}') from None


def write_activation(config):
  activation = config['model.feed_forward']
  is_gated = is_gated_layer(activation)
  try:
    name = (
      'gelu_new'
      if activation == 'geglu_tanh'
      else (GATED_ACTIVATIONS if is_gated else ACTIVATIONS).write(activation)
    )
  except ValueError as error:
    raise ValueError(f'config.model.feed_forward={error}') from None
  form = f'gated-{"gelu" if name == "gelu_new" else name}' if is_gated else name
  return dict(feed_forward_proj=form, dense_act_fn=name, is_gated_act=is_gated)


def is_gated_layer(feed_forward):
  """Whether the config value of a feed-forward layer is a gated one."""
  try:
    GATED_ACTIVATIONS.write(feed_forward)
  except ValueError:
    return False
  return True


def read_positions(hf_config):
  kwargs = (
    f'buckets={hf_config.get("relative_attention_num_buckets", 32)}, '
    f'max_distance={hf_config.get("relative_attention_max_distance", 128)}'
  )
  return {'model.position': f't5({kwargs})', 'model.encoder.position': f't5({kwargs}, bidirectional=True)'}


def write_positions(config):
  call = parse(config['model.position'])
  if call.name != 't5':
    raise ValueError(
      f'config.model.position={config["model.position"]!r} is not supported by the family; use {"t5"!r}'
    )
  kwargs = dict(zip(('buckets', 'max_distance'), call.args)) | dict(call.kwargs)
  return dict(
    relative_attention_num_buckets=kwargs.get('buckets', 32),
    relative_attention_max_distance=kwargs.get('max_distance', 128),
  )


def read_dropout(hf_config):
  return dict.fromkeys(
    (f'model.dropout.{place}' for place in ('embedding', 'attention', 'residual')),
    hf_config.get('dropout_rate', 0.1),
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
  """The blocks of encoder or decoder, the last norm, and the table of relative positions, stored in the first
  block.
  """
  root = 'encoder/' if side == 'encoder' else ''
  yield from norm(f'{side}.final_layer_norm', f'{root}norm', bias=False)
  yield Weight(
    f'{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight', f'{root}position_0/table'
  )
  for i, block in enumerate(block_paths(config, where)):
    for place, (hf_name, tfm_name) in enumerate(branches.items()):
      name, path = f'{side}.block.{i}.layer.{place}', f'{block}/{tfm_name}'
      yield from norm(f'{name}.layer_norm', f'{path}_norm', bias=False)
      yield from (feed_forward_weights if tfm_name == 'feed_forward' else projections)(
        f'{name}.{hf_name}', path, part
      )


def projections(name, path, section):
  for letter in 'qkv':
    yield Weight(
      f'{name}.{letter}.weight', f'{path}/{letter}/kernel', '(h c) d -> d h c', dict(h=section.heads)
    )
  yield Weight(f'{name}.o.weight', f'{path}/out/kernel', 'd (h c) -> h c d', dict(h=section.heads))


def feed_forward_weights(name, path, section):
  is_gated = is_gated_layer(section.feed_forward)
  for hf_name, tfm_name in (
    dict(wi_0='up', wi_1='gate', wo='down').items() if is_gated else dict(wi='up', wo='down').items()
  ):
    yield Weight(f'{name}.{hf_name}.weight', f'{path}/{tfm_name}/kernel', 'f d -> d f')


SHARED = dict(
  weights=weights,
  tied_names=lambda config: TIED_NAMES,
  lm_head='lm_head.weight',
  ignored_tensors=r'decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight',
)
TIED_NAMES = 'shared.weight', 'encoder.embed_tokens.weight', 'decoder.embed_tokens.weight'
FAMILIES = (
  Family(
    model_type='t5',
    fields=fields,
    architectures={
      'T5ForConditionalGeneration': 'vocabulary',
      'T5WithLMHeadModel': 'vocabulary',
      'T5Model': 'features',
    },
    **SHARED,
  ),
  Family(
    model_type='mt5',
    fields=fields_mt5,
    architectures={'MT5ForConditionalGeneration': 'vocabulary', 'MT5Model': 'features'},
    **SHARED,
  ),
)
