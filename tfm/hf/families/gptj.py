"""GPT-J (Wang & Komatsuzaki 2021)."""

from tfm.hf.families import _rope_fields, gpt_neox
from tfm.hf.families._config_fields import (
  ConfigConstant,
  CustomField,
  HfConfig,
  IgnoredFields,
  MappedField,
  SupportedValues,
)
from tfm.hf.families._field_converters import ACTIVATIONS, spec_argument
from tfm.hf.families.protocol import Family, Weight, block_paths, linear, norm


ROPE = _rope_fields.position_field(interleaved=True, partial=True)


def fields(output):
  yield from (
    MappedField('n_layer', 'model.layers', default=28),
    MappedField('n_embd', 'model.width', default=4096),
    MappedField('n_head', 'model.heads', default=16),
    MappedField('n_positions', 'data.length', default=2048),
    CustomField(read_rope, write_rope),
    MappedField('n_inner', 'model.feed_forward_width', default=None),
    MappedField('activation_function', 'model.feed_forward', ACTIVATIONS, default='gelu_new'),
    MappedField(
      'layer_norm_epsilon', 'model.norm', spec_argument('layernorm', 'epsilon', 1e-5), default=1e-5
    ),
    MappedField('embd_pdrop', 'model.dropout.embedding', default=0.0),
    MappedField('attn_pdrop', 'model.dropout.attention', default=0.0),
    MappedField('resid_pdrop', 'model.dropout.residual', default=0.0),
    MappedField('tie_word_embeddings', 'model.tie_embeddings', default=False),
    MappedField('vocab_size', 'vocab', default=50400),
    MappedField('eos_token_id', 'ids.eos', default=50256),
    MappedField('pad_token_id', 'ids.pad', default=None),
    ConfigConstant('model.residual', 'parallel_one_norm'),
    ConfigConstant('model.bias', True),
    ConfigConstant('model.mixer', "softmax(biases='')"),
    ConfigConstant('model.output_bias', output == 'vocabulary'),
    SupportedValues(rotary=True, scale_attn_weights=True),
    IgnoredFields('n_ctx'),
  )


def read_rope(hf_config):
  """The rotated channels of a head as a fraction."""
  channels, head = (
    hf_config.get('rotary_dim', 64),
    hf_config.get('n_embd', 4096) // hf_config.get('n_head', 16),
  )
  if channels is None:
    raise ValueError(f'config.json: rotary_dim=None is not supported; use {head}, the whole head')
  return ROPE.read_fields(HfConfig(dict(partial_rotary_factor=channels / head, max_position_embeddings=0)))


def write_rope(config):
  return dict(
    rotary_dim=round(ROPE.write_fields(config).get('partial_rotary_factor', 1.0) * config['model.head_width'])
  )


def weights(config):
  m = config.model
  yield Weight('transformer.wte.weight', 'embedding/table')
  for i, block in enumerate(block_paths(config)):
    name = f'transformer.h.{i}'
    yield from norm(f'{name}.ln_1', f'{block}/norm', bias=True)
    for letter in 'qkv':
      yield from linear(
        f'{name}.attn.{letter}_proj',
        f'{block}/mixer/{letter}',
        '(h c) d -> d h c',
        False,
        sizes=dict(h=m.heads),
      )
    yield from gpt_neox.output_projection(f'{name}.attn.out_proj', f'{block}/mixer/out', m, bias=False)
    yield from linear(f'{name}.mlp.fc_in', f'{block}/feed_forward/up', 'f d -> d f', bias=True)
    yield from linear(f'{name}.mlp.fc_out', f'{block}/feed_forward/down', 'd f -> f d', bias=True)
  yield from norm('transformer.ln_f', 'norm', bias=True)
  yield from output_layer(m)


def output_layer(model):
  """The output layer, if untied, and its bias."""
  if not model.tie_embeddings:
    yield Weight('lm_head.weight', 'output/kernel', 'v d -> d v')
  if model.output_bias:
    yield Weight('lm_head.bias', 'bias/bias')


FAMILIES = (
  Family(
    model_type='gptj',
    architectures={'GPTJForCausalLM': 'vocabulary', 'GPTJModel': 'features'},
    fields=fields,
    weights=weights,
    prefix='transformer.',
    ignored_tensors=r'(transformer\.)?h\.\d+\.attn\.(bias|masked_bias|embed_positions)|lm_head\.weight',
  ),
)
