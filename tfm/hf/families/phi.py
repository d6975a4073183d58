"""Phi 1 to 2 (Gunasekar et al. 2023; Li et al. 2023)."""

from tfm.hf.families import _rope_fields
from tfm.hf.families._config_fields import ConfigConstant, CustomField, MappedField
from tfm.hf.families._field_converters import ACTIVATIONS, spec_argument
from tfm.hf.families.gpt_neox import output_projection
from tfm.hf.families.gptj import output_layer
from tfm.hf.families.protocol import Family, Weight, block_paths, linear, norm
from tfm.spec import parse


def fields(output):
  yield from (
    MappedField('num_hidden_layers', 'model.layers', default=24),
    MappedField('hidden_size', 'model.width', default=2048),
    MappedField('num_attention_heads', 'model.heads', default=32),
    MappedField('num_key_value_heads', 'model.kv_heads', default=None),
    MappedField('intermediate_size', 'model.feed_forward_width', default=8192),
    MappedField('hidden_act', 'model.feed_forward', ACTIVATIONS, default='gelu_new'),
    MappedField('layer_norm_eps', 'model.norm', EPSILON, default=1e-5),
    CustomField(read_qk_norm, write_qk_norm),
    _rope_fields.position_field(default_fraction=0.5, default_length=2048, partial=True),
    MappedField('max_position_embeddings', 'data.length', default=2048),
    MappedField('embd_pdrop', 'model.dropout.embedding', default=0.0),
    MappedField('attention_dropout', 'model.dropout.attention', default=0.0),
    MappedField('resid_pdrop', 'model.dropout.residual', default=0.0),
    MappedField('tie_word_embeddings', 'model.tie_embeddings', default=False),
    MappedField('vocab_size', 'vocab', default=51200),
    MappedField('eos_token_id', 'ids.eos', default=2),
    MappedField('pad_token_id', 'ids.pad', default=None),
    ConfigConstant('model.residual', 'parallel_one_norm'),
    ConfigConstant('model.bias', True),
    ConfigConstant('model.output_bias', output == 'vocabulary'),
  )


EPSILON = spec_argument('layernorm', 'epsilon', 1e-5)


def read_qk_norm(hf_config):
  """Optional norms of queries and keys, with the epsilon of all norms."""
  has_norm = hf_config.get('qk_layernorm', False)
  return {
    'model.mixer': f'softmax(qk_norm={EPSILON.read(hf_config.get("layer_norm_eps", 1e-5))!r})'
    if has_norm
    else 'softmax'
  }


def write_qk_norm(config):
  return dict(qk_layernorm=bool(parse(config['model.mixer']).kwargs.get('qk_norm')))


def weights(config):
  m = config.model
  yield Weight('model.embed_tokens.weight', 'embedding/table')
  for i, block in enumerate(block_paths(config)):
    name = f'model.layers.{i}'
    yield from norm(f'{name}.input_layernorm', f'{block}/norm', bias=True)
    for letter, heads in (('q', m.heads), ('k', m.kv_heads), ('v', m.kv_heads)):
      yield from linear(
        f'{name}.self_attn.{letter}_proj',
        f'{block}/mixer/{letter}',
        '(h c) d -> d h c',
        True,
        sizes=dict(h=heads),
      )
    if write_qk_norm({'model.mixer': m.mixer})['qk_layernorm']:
      for letter in 'qk':
        yield from norm(f'{name}.self_attn.{letter}_layernorm', f'{block}/mixer/{letter}_norm', bias=True)
    yield from output_projection(f'{name}.self_attn.dense', f'{block}/mixer/out', m, bias=True)
    yield from linear(f'{name}.mlp.fc1', f'{block}/feed_forward/up', 'f d -> d f', bias=True)
    yield from linear(f'{name}.mlp.fc2', f'{block}/feed_forward/down', 'd f -> f d', bias=True)
  yield from norm('model.final_layernorm', 'norm', bias=True)
  yield from output_layer(m)


FAMILIES = (
  Family(
    model_type='phi',
    architectures={'PhiForCausalLM': 'vocabulary', 'PhiModel': 'features'},
    fields=fields,
    weights=weights,
    prefix='model.',
    ignored_tensors=r'.*rotary_emb\.inv_freq|lm_head\.weight',
  ),
)
