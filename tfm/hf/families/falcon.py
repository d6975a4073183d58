"""Falcon (Almazrouei et al. 2023), from its first models of 1 to 180 billion parameters to Falcon 2."""

from tfm.hf.families import _rope_fields, bloom, gpt_neox
from tfm.hf.families._config_fields import CustomField, IgnoredFields, MappedField, SupportedValues
from tfm.hf.families._field_converters import ACTIVATIONS, spec_argument
from tfm.hf.families.protocol import Family, Weight, block_paths, norm


def fields(output):
  yield from (
    MappedField('num_hidden_layers', 'model.layers', default=32, aliases=('n_layer',)),
    MappedField('hidden_size', 'model.width', default=4544, aliases=('n_embed',)),
    MappedField('num_attention_heads', 'model.heads', default=71, aliases=('n_head',)),
    CustomField(read_structure, write_structure),
    CustomField(read_position, write_position),
    MappedField('ffn_hidden_size', 'model.feed_forward_width', default=None),
    MappedField('activation', 'model.feed_forward', ACTIVATIONS, default='gelu'),
    MappedField('bias', 'model.bias', default=False),
    MappedField(
      'layer_norm_epsilon', 'model.norm', spec_argument('layernorm', 'epsilon', 1e-5, bias=True), default=1e-5
    ),
    MappedField('max_position_embeddings', 'data.length', default=2048),
    MappedField('attention_dropout', 'model.dropout.attention', default=0.0),
    MappedField('hidden_dropout', 'model.dropout.residual', default=0.0),
    MappedField('tie_word_embeddings', 'model.tie_embeddings', default=True),
    MappedField('vocab_size', 'vocab', default=65024),
    MappedField('eos_token_id', 'ids.eos', default=11),
    MappedField('pad_token_id', 'ids.pad', default=None),
    SupportedValues(apply_residual_connection_post_layernorm=False),
    IgnoredFields('ff_factor'),
  )


# Number of norms in a parallel block → its residual.
RESIDUALS = {2: 'parallel', 1: 'parallel_one_norm'}


def read_structure(hf_config):
  """Groups of heads, and the residual; two generations of files use different fields."""
  new, parallel, shared, groups, norms = (
    hf_config.get(*field)
    for field in (
      ('new_decoder_architecture', False),
      ('parallel_attn', True),
      ('multi_query', True),
      ('num_kv_heads', None),
      ('num_ln_in_parallel_attn', None),
    )
  )
  heads = hf_config.get('num_attention_heads', hf_config.get('n_head', 71))
  if new:
    norms = 2 if norms is None else norms
    if not parallel or norms not in RESIDUALS:
      unsupported = f'num_ln_in_parallel_attn={norms!r}' if parallel else f'parallel_attn={parallel!r}'
      raise ValueError(f'config.json: {unsupported} is not supported with new_decoder_architecture=True')
    return {'model.kv_heads': groups, 'model.residual': RESIDUALS[norms]}
  if parallel and norms == 2:
    raise ValueError(
      'config.json: num_ln_in_parallel_attn=2 is not supported with new_decoder_architecture=False'
    )
  if not shared and groups not in (None, heads):
    raise ValueError(
      f'config.json: num_kv_heads={groups} is not supported with new_decoder_architecture=False and '
      f'multi_query=False; use {heads}'
    )
  return {
    'model.kv_heads': 1 if shared else None,
    'model.residual': 'parallel_one_norm' if parallel else 'sequential',
  }


def write_structure(config):
  heads, groups, residual = (config[f'model.{name}'] for name in ('heads', 'kv_heads', 'residual'))
  old = groups in (1, heads) and residual != 'parallel'
  if not old and residual == 'sequential':
    raise ValueError(
      f"config.model.kv_heads={groups} is not supported by the family with residual='sequential'; "
      f'use 1 or {heads}'
    )
  norms = None if old else 2 if residual == 'parallel' else 1
  return dict(
    new_decoder_architecture=not old,
    parallel_attn=residual != 'sequential',
    multi_query=groups == 1,
    num_kv_heads=groups,
    num_ln_in_parallel_attn=norms,
  )


ROPE = _rope_fields.position_field(default_length=2048)


def read_position(hf_config):
  rope_fields = ROPE.read_fields(hf_config)
  heads = hf_config.get('num_attention_heads', hf_config.get('n_head', 71))
  width = hf_config.get('hidden_size', hf_config.get('n_embed', 4544))
  return {'model.position': format_alibi(width // heads)} if hf_config.get('alibi', False) else rope_fields


def write_position(config):
  uses_alibi = config['model.position'] == format_alibi(config['model.head_width'])
  return dict(alibi=uses_alibi) | ({} if uses_alibi else ROPE.write_fields(config))


def format_alibi(channels):
  """The published biases: products in bfloat16, divided like the scores."""
  return f'alibi(scale={channels**-0.5!r}, rounded=True)'


def weights(config):
  m = config.model
  norms = dict(
    parallel=dict(ln_attn='mixer_norm', ln_mlp='feed_forward_norm'),
    parallel_one_norm=dict(input_layernorm='norm'),
    sequential=dict(input_layernorm='mixer_norm', post_attention_layernorm='feed_forward_norm'),
  )[m.residual]
  yield Weight('transformer.word_embeddings.weight', 'embedding/table')
  for i, block in enumerate(block_paths(config)):
    yield from gpt_neox.layer(f'transformer.h.{i}', block, m, bloom.PARTS, norms)
  yield from norm('transformer.ln_f', 'norm', bias=True)
  if not m.tie_embeddings:
    yield Weight('lm_head.weight', 'output/kernel', 'v d -> d v')


FAMILIES = (
  Family(
    model_type='falcon',
    architectures={'FalconForCausalLM': 'vocabulary', 'FalconModel': 'features'},
    fields=fields,
    weights=weights,
    prefix='transformer.',
    ignored_tensors=r'(transformer\.)?h\.\d+\.self_attention\.rotary_emb\.inv_freq|lm_head\.weight',
  ),
)
