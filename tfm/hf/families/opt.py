"""OPT (Zhang et al. 2022) and Galactica (Taylor et al. 2022)."""

from tfm.hf.families.converters import ACTIVATIONS, value_map
from tfm.hf.families.fields import CustomField, IgnoredFields, MappedField
from tfm.hf.families.gpt_neox import out
from tfm.hf.families.protocol import Family, Weight, block_paths, linear, norm
from tfm.spec import parse


BEFORE = 2  # rows of the table of positions that stand before the first


def fields(output):
  yield from (
    MappedField('num_hidden_layers', 'model.layers', default=12),
    MappedField('hidden_size', 'model.width', default=768),
    MappedField('num_attention_heads', 'model.heads', default=12),
    MappedField('ffn_dim', 'model.feed_forward_width', default=3072),
    MappedField('activation_function', 'model.feed_forward', ACTIVATIONS, default='relu'),
    MappedField('enable_bias', 'model.bias', default=True),
    CustomField(affine, affine_written),
    MappedField(
      'do_layer_norm_before', 'model.norm_placement', value_map({True: 'pre', False: 'post'}), default=True
    ),
    CustomField(no_norm_is_missing, lambda config: {}),
    CustomField(position, position_written),
    MappedField('dropout', 'model.dropout.residual', default=0.1),
    MappedField('attention_dropout', 'model.dropout.attention', default=0.0),
    MappedField('tie_word_embeddings', 'model.tie_embeddings', default=True),
    CustomField(narrower(output), lambda config: dict(word_embed_proj_dim=config['model.embedding_width'])),
    MappedField('vocab_size', 'vocab', default=50272),
    MappedField('eos_token_id', 'ids.eos', default=2),
    MappedField('pad_token_id', 'ids.pad', default=1),
    IgnoredFields('layerdrop', 'activation_dropout'),
  )


def affine(hf_config):
  has = hf_config.get('layer_norm_elementwise_affine', True)
  return {'model.norm': 'layernorm(bias=True)' if has else 'layernorm(bias=False, scale=False)'}


def affine_written(config):
  return dict(layer_norm_elementwise_affine=parse(config['model.norm']).kwargs.get('scale', True))


def no_norm_is_missing(hf_config):
  """The last one is there unless every block ends in one."""
  if hf_config.get('_remove_final_layer_norm', False) and hf_config.get('do_layer_norm_before', True):
    raise ValueError(
      'config.json: _remove_final_layer_norm=True is not understood beside do_layer_norm_before=True'
    )
  return {}


def position(hf_config):
  rows = hf_config.get('max_position_embeddings', 2048)
  return {'model.position': f'learned(rows={rows}, before={BEFORE})', 'data.length': rows}


def position_written(config):
  call = parse(config['model.position'])
  if call.name != 'learned' or call.args or call.kwargs.get('before') != BEFORE:
    raise ValueError(
      f'config.model.position={config["model.position"]!r} is not said by the family; '
      f"'learned(before={BEFORE})' would be"
    )
  return dict(max_position_embeddings=call.kwargs.get('rows') or config['data.length'])


def narrower(output):
  """How a table narrower than the model is read."""

  def read_fields(hf_config):
    width = hf_config.get('word_embed_proj_dim', None)
    if width not in (None, hf_config.get('hidden_size', 768)):
      # Both would have a projection that is said to belong to the table, read backwards.
      if output == 'features':
        raise ValueError(
          f'config.json: word_embed_proj_dim={width} is not understood of a model without an output; '
          "architectures=['OPTForCausalLM'] would be"
        )
      if not hf_config.get('tie_word_embeddings', True):
        raise ValueError(
          f'config.json: word_embed_proj_dim={width} is not understood beside tie_word_embeddings=False'
        )
    return {'model.embedding_width': width}

  return read_fields


def weights(config):
  m = config.model
  affine = parse(m.norm).kwargs.get('scale', True)
  yield Weight('model.decoder.embed_tokens.weight', 'embedding/table')
  yield Weight('model.decoder.embed_positions.weight', 'position_0/table')
  if m.embedding_width != m.width:
    for part in ('project_in', 'project_out'):
      yield from linear(f'model.decoder.{part}', f'embedding/{part}', 'o d -> d o', bias=False)
  for i, block in enumerate(block_paths(config)):
    name = f'model.decoder.layers.{i}'
    for letter in 'qkv':
      yield from linear(
        f'{name}.self_attn.{letter}_proj',
        f'{block}/mixer/{letter}',
        '(h c) d -> d h c',
        m.bias,
        sizes=dict(h=m.heads),
      )
    yield from out(f'{name}.self_attn.out_proj', f'{block}/mixer/out', m, m.bias)
    yield from linear(f'{name}.fc1', f'{block}/feed_forward/up', 'f d -> d f', m.bias)
    yield from linear(f'{name}.fc2', f'{block}/feed_forward/down', 'd f -> f d', m.bias)
    if affine:
      yield from norm(f'{name}.self_attn_layer_norm', f'{block}/mixer_norm', bias=True)
      yield from norm(f'{name}.final_layer_norm', f'{block}/feed_forward_norm', bias=True)
  if affine and m.norm_placement == 'pre':
    yield from norm('model.decoder.final_layer_norm', 'norm', bias=True)
  if not m.tie_embeddings:
    yield Weight('lm_head.weight', 'output/kernel', 'v d -> d v')


FAMILIES = (
  Family(
    model_type='opt',
    architectures={'OPTForCausalLM': 'vocabulary', 'OPTModel': 'features'},
    fields=fields,
    weights=weights,
    prefix='model.',
    ignored_tensors=r'lm_head\.weight',
  ),
)
