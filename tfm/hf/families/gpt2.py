"""GPT-2 (Radford et al. 2019)."""

from tfm.errors import require
from tfm.hf.families._config_fields import (
  ConfigConstant,
  CustomField,
  IgnoredFields,
  MappedField,
  SupportedValues,
  learned_position,
)
from tfm.hf.families._field_converters import ACTIVATIONS, spec_argument
from tfm.hf.families._layer_patterns import layer_count, layer_pattern, layer_values
from tfm.hf.families.protocol import Family, Weight, block_paths, norm


def fields(output):
  yield from shared()
  yield CustomField(read_layer_scales, write_layer_scales)
  yield IgnoredFields('n_ctx', 'reorder_and_upcast_attn')  # logits are in float32 anyway


def layer_scores(layers, head_width):
  """The score of each layer if q·k / √C is divided by the layer's number, counted from 1."""
  return [f'dot({head_width**-0.5 / i!r})' for i in range(1, layers + 1)]


def read_layer_scales(hf_config):
  if not hf_config.get('scale_attn_by_inverse_layer_idx', False):
    return {}
  layers = layer_count(hf_config, 'n_layer', 12)
  scores = layer_scores(layers, hf_config.get('n_embd', 768) // hf_config.get('n_head', 12))
  names = [f'layer_{i}' for i in range(layers)]
  return layer_pattern(names, {name: dict(score=score) for name, score in zip(names, scores)})


def write_layer_scales(config):
  """Raises ValueError for scores that are neither all 'dot' nor `layer_scores`."""
  found, layers = layer_values(config, 'score'), config['model.layers']
  scaled = layer_scores(layers, config['model.width'] // config['model.heads'])
  require(
    found in (['dot'] * layers, scaled),
    f"config.model.score={found[0]!r} is not supported by the family; use 'dot', or {scaled!r} by layer",
  )
  return dict(scale_attn_by_inverse_layer_idx=found == scaled)


def shared():
  """The fields that GPT-BigCode shares."""
  yield from (
    MappedField('n_layer', 'model.layers', default=12),
    MappedField('n_embd', 'model.width', default=768),
    MappedField('n_head', 'model.heads', default=12),
    learned_position('n_positions', default=1024),
    MappedField('n_inner', 'model.feed_forward_width', default=None),
    MappedField('activation_function', 'model.feed_forward', ACTIVATIONS, default='gelu_new'),
    MappedField(
      'layer_norm_epsilon', 'model.norm', spec_argument('layernorm', 'epsilon', 1e-5), default=1e-5
    ),
    MappedField('embd_pdrop', 'model.dropout.embedding', default=0.1),
    MappedField('attn_pdrop', 'model.dropout.attention', default=0.1),
    MappedField('resid_pdrop', 'model.dropout.residual', default=0.1),
    MappedField('tie_word_embeddings', 'model.tie_embeddings', default=True),
    MappedField('vocab_size', 'vocab', default=50257),
    MappedField('eos_token_id', 'ids.eos', default=50256),
    MappedField('pad_token_id', 'ids.pad', default=None),
    ConfigConstant('model.bias', True),
    SupportedValues(scale_attn_weights=True),
  )


def weights(config):
  m = config.model
  yield Weight('transformer.wte.weight', 'embedding/table')
  yield Weight('transformer.wpe.weight', 'position_0/table')
  for i, block in enumerate(block_paths(config)):
    name = f'transformer.h.{i}'
    yield from norm(f'{name}.ln_1', f'{block}/mixer_norm', bias=True)
    yield from norm(f'{name}.ln_2', f'{block}/feed_forward_norm', bias=True)
    # These projections are [in, out].
    qkv, heads = [f'{block}/mixer/{part}' for part in 'qkv'], dict(n=3, h=m.heads)
    yield Weight(
      f'{name}.attn.c_attn.weight', tuple(f'{path}/kernel' for path in qkv), 'd (n h c) -> n d h c', heads
    )
    yield Weight(f'{name}.attn.c_attn.bias', tuple(f'{path}/bias' for path in qkv), '(n h c) -> n h c', heads)
    yield Weight(
      f'{name}.attn.c_proj.weight', f'{block}/mixer/out/kernel', '(h c) d -> h c d', dict(h=m.heads)
    )
    yield Weight(f'{name}.attn.c_proj.bias', f'{block}/mixer/out/bias')
    for hf_name, tfm_name in (('c_fc', 'up'), ('c_proj', 'down')):
      yield Weight(f'{name}.mlp.{hf_name}.weight', f'{block}/feed_forward/{tfm_name}/kernel')
      yield Weight(f'{name}.mlp.{hf_name}.bias', f'{block}/feed_forward/{tfm_name}/bias')
  yield from norm('transformer.ln_f', 'norm', bias=True)
  if not m.tie_embeddings:
    yield Weight('lm_head.weight', 'output/kernel', 'v d -> d v')


FAMILIES = (
  Family(
    model_type='gpt2',
    architectures={'GPT2LMHeadModel': 'vocabulary', 'GPT2Model': 'features'},
    fields=fields,
    weights=weights,
    prefix='transformer.',
    ignored_tensors=r'(transformer\.)?h\.\d+\.attn\.(masked_)?bias|lm_head\.weight',
  ),
)
