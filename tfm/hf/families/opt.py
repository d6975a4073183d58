"""OPT (Zhang et al. 2022) and Galactica (Taylor et al. 2022)."""

from tfm.hf.families.fields import PLAIN, Both, Ignored, Same, names
from tfm.hf.families.gpt_neox import out
from tfm.hf.families.protocol import Family, Weight, blocks, both, norm
from tfm.spec import parse


BEFORE = 2  # rows of the table of positions that stand before the first


def fields(output):
  yield from (
    Same('num_hidden_layers', 'model.layers', default=12),
    Same('hidden_size', 'model.width', default=768),
    Same('num_attention_heads', 'model.heads', default=12),
    Same('ffn_dim', 'model.feed_forward_width', default=3072),
    Same('activation_function', 'model.feed_forward', PLAIN, default='relu'),
    Same('enable_bias', 'model.bias', default=True),
    Both(affine, affine_written),
    Same('do_layer_norm_before', 'model.norm_placement', names({True: 'pre', False: 'post'}), default=True),
    Both(no_norm_is_missing, lambda config: {}),
    Both(position, position_written),
    Same('dropout', 'model.dropout.residual', default=0.1),
    Same('attention_dropout', 'model.dropout.attention', default=0.0),
    Same('tie_word_embeddings', 'model.tie_embeddings', default=True),
    Both(narrower(output), lambda config: dict(word_embed_proj_dim=config['model.embedding_width'])),
    Same('vocab_size', 'vocab', default=50272),
    Same('eos_token_id', 'ids.eos', default=2),
    Same('pad_token_id', 'ids.pad', default=1),
    Ignored('layerdrop', 'activation_dropout'),
  )


def affine(given):
  has = given.take('layer_norm_elementwise_affine', True)
  return {'model.norm': 'layernorm(bias=True)' if has else 'layernorm(bias=False, scale=False)'}


def affine_written(config):
  return dict(layer_norm_elementwise_affine=parse(config['model.norm']).kwargs.get('scale', True))


def no_norm_is_missing(given):
  """The last one is there unless every block ends in one."""
  if given.take('_remove_final_layer_norm', False) and given.take('do_layer_norm_before', True):
    raise ValueError(
      'config.json: _remove_final_layer_norm=True is not understood beside do_layer_norm_before=True'
    )
  return {}


def position(given):
  rows = given.take('max_position_embeddings', 2048)
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

  def reading(given):
    width = given.take('word_embed_proj_dim', None)
    if width not in (None, given.take('hidden_size', 768)):
      # Both would have a projection that is said to belong to the table, read backwards.
      if output == 'features':
        raise ValueError(
          f'config.json: word_embed_proj_dim={width} is not understood of a model without an output; '
          "architectures=['OPTForCausalLM'] would be"
        )
      if not given.take('tie_word_embeddings', True):
        raise ValueError(
          f'config.json: word_embed_proj_dim={width} is not understood beside tie_word_embeddings=False'
        )
    return {'model.embedding_width': width}

  return reading


def weights(config):
  m = config.model
  affine = parse(m.norm).kwargs.get('scale', True)
  yield Weight('model.decoder.embed_tokens.weight', 'embedding/table')
  yield Weight('model.decoder.embed_positions.weight', 'position_0/table')
  if m.embedding_width != m.width:
    for part in ('project_in', 'project_out'):
      yield from both(f'model.decoder.{part}', f'embedding/{part}', 'o d -> d o', bias=False)
  for i, block in enumerate(blocks(config)):
    name = f'model.decoder.layers.{i}'
    for letter in 'qkv':
      yield from both(
        f'{name}.self_attn.{letter}_proj',
        f'{block}/mixer/{letter}',
        '(h c) d -> d h c',
        m.bias,
        sizes=dict(h=m.heads),
      )
    yield from out(f'{name}.self_attn.out_proj', f'{block}/mixer/out', m, m.bias)
    yield from both(f'{name}.fc1', f'{block}/feed_forward/up', 'f d -> d f', m.bias)
    yield from both(f'{name}.fc2', f'{block}/feed_forward/down', 'd f -> f d', m.bias)
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
    ignored=r'lm_head\.weight',
  ),
)
