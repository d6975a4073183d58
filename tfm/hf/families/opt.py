"""OPT (Zhang et al. 2022) and Galactica (Taylor et al. 2022)."""

from tfm.hf.families._config_fields import CustomField, IgnoredFields, MappedField
from tfm.hf.families._field_converters import ACTIVATIONS, value_map
from tfm.hf.families.gpt_neox import output_projection
from tfm.hf.families.protocol import Family, Weight, block_paths, linear, norm
from tfm.spec import parse


EXTRA_ROWS = 2  # unused rows of the position table before position 0


def fields(output):
  yield from (
    MappedField('num_hidden_layers', 'model.layers', default=12),
    MappedField('hidden_size', 'model.width', default=768),
    MappedField('num_attention_heads', 'model.heads', default=12),
    MappedField('ffn_dim', 'model.feed_forward_width', default=3072),
    MappedField('activation_function', 'model.feed_forward', ACTIVATIONS, default='relu'),
    MappedField('enable_bias', 'model.bias', default=True),
    CustomField(read_affine, write_affine),
    MappedField(
      'do_layer_norm_before', 'model.norm_placement', value_map({True: 'pre', False: 'post'}), default=True
    ),
    CustomField(check_final_norm, lambda config: {}),
    CustomField(read_position, write_position),
    MappedField('dropout', 'model.dropout.residual', default=0.1),
    MappedField('attention_dropout', 'model.dropout.attention', default=0.0),
    MappedField('tie_word_embeddings', 'model.tie_embeddings', default=True),
    CustomField(
      make_width_reader(output), lambda config: dict(word_embed_proj_dim=config['model.embedding_width'])
    ),
    MappedField('vocab_size', 'vocab', default=50272),
    MappedField('eos_token_id', 'ids.eos', default=2),
    MappedField('pad_token_id', 'ids.pad', default=1),
    IgnoredFields('layerdrop', 'activation_dropout'),
  )


def read_affine(hf_config):
  is_affine = hf_config.get('layer_norm_elementwise_affine', True)
  return {'model.norm': 'layernorm(bias=True)' if is_affine else 'layernorm(bias=False, scale=False)'}


def write_affine(config):
  return dict(layer_norm_elementwise_affine=parse(config['model.norm']).kwargs.get('scale', True))


def check_final_norm(hf_config):
  """Rejects pre-norm models without the final norm."""
  if hf_config.get('_remove_final_layer_norm', False) and hf_config.get('do_layer_norm_before', True):
    raise ValueError(
      'config.json: _remove_final_layer_norm=True is not supported with do_layer_norm_before=True'
    )
  return {}


def read_position(hf_config):
  rows = hf_config.get('max_position_embeddings', 2048)
  return {'model.position': f'learned(rows={rows}, before={EXTRA_ROWS})', 'data.length': rows}


def write_position(config):
  call = parse(config['model.position'])
  if call.name != 'learned' or call.args or call.kwargs.get('before') != EXTRA_ROWS:
    raise ValueError(
      f'config.model.position={config["model.position"]!r} is not supported by the family; '
      f"use 'learned(before={EXTRA_ROWS})'"
    )
  return dict(max_position_embeddings=call.kwargs.get('rows') or config['data.length'])


def make_width_reader(output):
  """A reader of the embedding width, which may be narrower than the model."""

  def read_fields(hf_config):
    width = hf_config.get('word_embed_proj_dim', None)
    if width not in (None, hf_config.get('hidden_size', 768)):
      # Both cases lack the projection that the tied output applies transposed.
      if output == 'features':
        raise ValueError(
          f'config.json: word_embed_proj_dim={width} is not supported without an output; '
          "use architectures=['OPTForCausalLM']"
        )
      if not hf_config.get('tie_word_embeddings', True):
        raise ValueError(
          f'config.json: word_embed_proj_dim={width} is not supported with tie_word_embeddings=False'
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
    yield from output_projection(f'{name}.self_attn.out_proj', f'{block}/mixer/out', m, m.bias)
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
