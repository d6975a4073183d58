"""LLaMA 1 to 3 (Touvron et al. 2023a, 2023b; Llama Team 2024)."""

import dataclasses

from tfm.hf.families import _rope_fields
from tfm.hf.families._config_fields import CustomField, MappedField
from tfm.hf.families._field_converters import ALL_BIASES, GATED_ACTIVATIONS, format_spec, spec_argument
from tfm.hf.families.protocol import Family, Weight, bias_letters, block_paths, linear, norm
from tfm.spec import parse


def fields(output):
  yield from shared()
  yield _rope_fields.position_field()
  yield CustomField(read_biases, write_biases)


def shared(*without, **defaults):
  """The fields that LLaMA shares with its descendants.

  Args:
    without: fields that the descendant replaces.
    defaults: that differ from LLaMA's.
  """
  mapped = (
    MappedField('num_hidden_layers', 'model.layers'),
    MappedField('hidden_size', 'model.width'),
    MappedField('num_attention_heads', 'model.heads'),
    MappedField('num_key_value_heads', 'model.kv_heads', default=None),
    MappedField('head_dim', 'model.head_width', default=None),
    MappedField('intermediate_size', 'model.feed_forward_width'),
    MappedField('hidden_act', 'model.feed_forward', GATED_ACTIVATIONS, default='silu'),
    MappedField('rms_norm_eps', 'model.norm', spec_argument('rmsnorm', 'epsilon', 1e-6), default=1e-6),
    MappedField('attention_dropout', 'model.dropout.attention', default=0.0),
    MappedField('max_position_embeddings', 'data.length'),
    MappedField('tie_word_embeddings', 'model.tie_embeddings', default=False),
    MappedField('vocab_size', 'vocab'),
    MappedField('eos_token_id', 'ids.eos', default=None),
    MappedField('pad_token_id', 'ids.pad', default=None),
  )
  for field in mapped:
    if field.name not in without:
      yield dataclasses.replace(field, default=defaults.get(field.name, field.default))


def read_biases(hf_config):
  """Biases of attention (all four projections or none) and of the feed-forward layer."""
  bias, others = hf_config.get('attention_bias', False), hf_config.get('mlp_bias', False)
  mixer = 'softmax' if bias == others else format_spec('softmax', dict(biases=ALL_BIASES.read(bias)))
  return {'model.mixer': mixer, 'model.bias': others}


def write_biases(config):
  letters = parse(config['model.mixer']).kwargs.get('biases')
  try:
    bias = config['model.bias'] if letters is None else ALL_BIASES.write(letters)
  except ValueError as error:
    raise ValueError(f'config.model.mixer={config["model.mixer"]!r}: biases={error}') from None
  return dict(attention_bias=bias, mlp_bias=config['model.bias'])


def weights(config):
  m = config.model
  yield from ends(config)
  for i, block in enumerate(block_paths(config)):
    name = f'model.layers.{i}'
    yield from attention(f'{name}.self_attn', f'{block}/mixer', m)
    yield from feed_forward(f'{name}.mlp', f'{block}/feed_forward', m.bias)
    yield from norm(f'{name}.input_layernorm', f'{block}/mixer_norm', bias=False)
    yield from norm(f'{name}.post_attention_layernorm', f'{block}/feed_forward_norm', bias=False)


def ends(config, offset=0.0):
  """The embedding, the last norm and the output."""
  yield Weight('model.embed_tokens.weight', 'embedding/table')
  yield from norm('model.norm', 'norm', bias=False, offset=offset)
  if not config.model.tie_embeddings:
    yield Weight('lm_head.weight', 'output/kernel', 'v d -> d v')


def attention(name, path, section):
  """Four projections; `section` is the config section of the block."""
  with_bias = bias_letters(section)
  for letter, heads in (('q', section.heads), ('k', section.kv_heads), ('v', section.kv_heads)):
    yield from linear(
      f'{name}.{letter}_proj',
      f'{path}/{letter}',
      '(h c) d -> d h c',
      letter in with_bias,
      sizes=dict(h=heads),
    )
  # The bias of the output projection has no head axis.
  yield Weight(f'{name}.o_proj.weight', f'{path}/out/kernel', 'd (h c) -> h c d', dict(h=section.heads))
  if 'o' in with_bias:
    yield Weight(f'{name}.o_proj.bias', f'{path}/out/bias')


def feed_forward(name, path, bias):
  """A gated feed-forward layer of three projections."""
  for hf_name, tfm_name in (('gate_proj', 'up'), ('up_proj', 'gate'), ('down_proj', 'down')):
    yield from linear(f'{name}.{hf_name}', f'{path}/{tfm_name}', 'f d -> d f', bias)


# Constants, and a tied output.
IGNORED_TENSORS = r'.*rotary_emb\.inv_freq|lm_head\.weight'
FAMILIES = (
  Family(
    model_type='llama',
    architectures={'LlamaForCausalLM': 'vocabulary', 'LlamaModel': 'features'},
    fields=fields,
    weights=weights,
    prefix='model.',
    ignored_tensors=IGNORED_TENSORS,
  ),
)
