"""DeBERTa 1 to 3 (He et al. 2021a, 2021b)."""

import functools

from tfm.hf.families import bert
from tfm.hf.families.converters import value_map
from tfm.hf.families.fields import ConfigConstant, CustomField, IgnoredFields, MappedField, SupportedValues
from tfm.hf.families.protocol import Family, Weight, block_paths, linear, norm
from tfm.spec import parse


FIRST = dict(layer_norm_eps=1e-7, vocab_size=50265)
SECOND = dict(
  num_hidden_layers=24,
  hidden_size=1536,
  num_attention_heads=24,
  intermediate_size=6144,
  layer_norm_eps=1e-7,
  vocab_size=128100,
)


def shared(output):
  """What the versions have in common."""
  yield from (
    MappedField('type_vocab_size', 'model.token_types', default=0),
    MappedField('pad_token_id', 'ids.pad', default=0),
    CustomField(embedding_size, lambda config: {}),
    # Sizes that follow from others, the names of tensors, and training.
    IgnoredFields('padding_idx', 'pooler_hidden_size', 'legacy', 'pooler_dropout', 'cls_dropout'),
    MappedField('pooler_hidden_act', 'model.pooled_transform', POOLED, default='gelu')
    if output == 'classes'
    else IgnoredFields('pooler_hidden_act'),
  )


def first(output):
  """Of the first version: one projection of queries, keys and values; those of keys have no bias."""
  yield from bert.shared(output, **FIRST)
  yield from shared(output)
  yield ConfigConstant('model.mixer', "softmax(biases='qvo')")
  yield CustomField(positions, functools.partial(positions_written, ()))
  yield SupportedValues(talking_head=False)


def second(output):
  """Of the second and the third."""
  yield from bert.shared(output, **SECOND)
  yield from shared(output)
  yield MappedField('attention_head_size', 'model.head_width', default=None)
  yield CustomField(
    lambda hf_config: positions(hf_config, *further(hf_config)), functools.partial(positions_written, FURTHER)
  )
  yield SupportedValues(conv_kernel_size=0)
  yield IgnoredFields('conv_act', 'conv_groups')


POOLED = value_map(gelu='gelu', tanh='tanh', relu='relu', gelu_new='gelu_tanh', silu='silu')
# What positions have that came with the second version.
FURTHER = 'buckets', 'norm', 'epsilon', 'borrowed'
ARGUMENTS = 'max_distance', 'buckets', 'c2p', 'p2c', 'norm', 'epsilon', 'borrowed'


def embedding_size(hf_config):
  """A table of another width has other projections than ours."""
  if (found := hf_config.get('embedding_size', None)) not in (None, hf_config.get('hidden_size', None)):
    raise ValueError(f'config.json: embedding_size={found!r} is not understood; that of hidden_size alone is')
  return {}


def further(hf_config):
  """(buckets, whether there is a norm, whether projections are borrowed)."""
  normed = hf_config.get('norm_rel_ebd', 'none')
  if normed not in ('none', 'layer_norm'):
    raise ValueError(f"config.json: norm_rel_ebd={normed!r} is not understood; 'none' and 'layer_norm' are")
  return (
    max(hf_config.get('position_buckets', -1), 0),
    normed == 'layer_norm',
    hf_config.get('share_att_key', False),
  )


def positions(hf_config, buckets=0, normed=False, borrowed=False):
  """Disentangled positions, or a table of absolute ones, or none."""
  relative, absolute = (
    hf_config.get('relative_attention', False),
    hf_config.get('position_biased_input', True),
  )
  told, longest = hf_config.get('pos_att_type', None), hf_config.get('max_position_embeddings', 512)
  span, epsilon = hf_config.get('max_relative_positions', -1), hf_config.get('layer_norm_eps', 1e-7)
  terms = {term.strip() for term in (told.lower().split('|') if isinstance(told, str) else told or ())}
  if terms - {'c2p', 'p2c'} or bool(terms) != relative:
    raise ValueError(
      f"config.json: pos_att_type={told!r} is not understood with relative_attention={relative}; 'c2p', 'p2c' "
      'or both are with True, and none with False'
    )
  if relative and absolute:
    raise ValueError(
      'config.json: position_biased_input=True is not understood with relative_attention=True; one of them is'
    )
  if normed and not relative:
    raise ValueError(
      "config.json: norm_rel_ebd='layer_norm' is not understood with relative_attention=False; 'none' is"
    )
  if not relative:
    return {'model.position': f'learned(rows={longest})' if absolute else 'none', 'data.length': longest}
  said = dict(buckets=buckets) if buckets else {}
  said |= {term: False for term in ('c2p', 'p2c') if term not in terms}
  said |= dict(norm=True, epsilon=epsilon) if normed else {}
  said |= dict(borrowed=True) if borrowed else {}
  words = ', '.join(f'{name}={value!r}' for name, value in said.items())
  return {
    'model.position': f'deberta({span if span > 0 else longest}{", " if words else ""}{words})',
    'data.length': longest,
  }


def positions_written(further, config):
  call, length = parse(config['model.position']), config['data.length']
  said = dict(zip(ARGUMENTS, call.args)) | dict(call.kwargs)
  if call.name in ('learned', 'none') and not said.keys() - {'rows'}:
    return dict(
      relative_attention=False,
      position_biased_input=call.name == 'learned',
      pos_att_type=[],
      max_position_embeddings=said.get('rows', length),
    )
  if call.name != 'deberta' or said.keys() - {'max_distance', 'c2p', 'p2c', *further}:
    raise ValueError(
      f"config.model.position={config['model.position']!r} is not said by the family; 'deberta(512)' would be"
    )
  made = dict(
    relative_attention=True,
    position_biased_input=False,
    max_position_embeddings=length,
    max_relative_positions=said.get('max_distance', 512),
    pos_att_type=[term for term in ('p2c', 'c2p') if said.get(term, True)],
  )
  return made | (
    dict(
      position_buckets=said.get('buckets') or -1,
      norm_rel_ebd='layer_norm' if said.get('norm') else 'none',
      share_att_key=said.get('borrowed', False),
    )
    if further
    else {}
  )


def weights(config, layer, own):
  """
  Args:
    layer: (name, path, section) → a block's weights.
    own: the names of the projections of positions, as keys and as queries.
  """
  m = config.model
  yield from bert.embeddings('deberta.embeddings', config)
  call = parse(m.position)
  said = dict(zip(ARGUMENTS, call.args)) | dict(call.kwargs)
  if call.name == 'learned':
    yield Weight('deberta.embeddings.position_embeddings.weight', 'position_0/table')
  if call.name == 'deberta':
    yield Weight('deberta.encoder.rel_embeddings.weight', 'position_0/table')
  if said.get('norm'):
    yield from norm('deberta.encoder.LayerNorm', 'position_0/table_norm', bias=True)
  for i, block in enumerate(block_paths(config)):
    name = f'deberta.encoder.layer.{i}'
    yield from layer(name, block, m)
    if call.name == 'deberta' and not said.get('borrowed'):
      for term, hf_name, tfm_name in zip(('c2p', 'p2c'), own, ('key', 'query')):
        if said.get(term, True):
          # A bias of what is a key is the same for all keys: ours has none.
          yield from linear(
            f'{name}.attention.self.{hf_name}',
            f'{block}/mixer/position/{tfm_name}',
            '(h c) d -> d h c',
            tfm_name == 'query',
            sizes=dict(h=m.heads),
          )
  if m.output_bias:
    yield from bert.vocabulary(
      m, 'cls.predictions.transform.dense', 'cls.predictions.transform.LayerNorm', 'cls.predictions'
    )
  if config.objective.startswith('classification'):
    if m.pooled_transform:
      yield from linear('pooler.dense', 'classification/transform/dense', 'f d -> d f', True)
    yield from linear('classifier', 'classification/classes', 'n d -> d n', True)


def in_one(name, path, section):
  """A block whose queries, keys and values are one projection, head by head."""
  yield from bert.layer(
    name, path, section, {part: hf_name for part, hf_name in bert.LAYER.items() if part not in 'qkv'}
  )
  heads = dict(h=section.heads)
  yield Weight(
    f'{name}.attention.self.in_proj.weight',
    tuple(f'{path}/mixer/{letter}/kernel' for letter in 'qkv'),
    '(h n c) d -> n d h c',
    heads | dict(n=3),
  )
  for letter in 'qv':
    yield Weight(f'{name}.attention.self.{letter}_bias', f'{path}/mixer/{letter}/bias', '(h c) -> h c', heads)


LAYER = bert.LAYER | {
  letter: f'attention.self.{name}_proj' for letter, name in (('q', 'query'), ('k', 'key'), ('v', 'value'))
}


def family(model_type, classes, fields, **of_weights):
  """A version; `classes` begin their names."""
  return Family(
    model_type=model_type,
    architectures={
      f'{classes}Model': 'features',
      f'{classes}ForMaskedLM': 'vocabulary',
      f'{classes}ForSequenceClassification': 'classes',
      f'{classes}ForTokenClassification': 'token_classes',
    },
    fields=fields,
    weights=functools.partial(weights, **of_weights),
    prefix='deberta.',
    position_counting='all',
    ignored_tensors=r'(deberta\.)?embeddings\.position_ids|cls\.predictions\.(bias|decoder\.(weight|bias))',
    unused_tensors=r'(deberta\.)?embeddings\.position_embeddings\.weight|.*\.pos_key_proj\.bias|(cls|mask_predictions|pooler)\..*',
  )


FAMILIES = (
  family('deberta', 'Deberta', first, layer=in_one, own=('pos_proj', 'pos_q_proj')),
  family(
    'deberta-v2',
    'DebertaV2',
    second,
    layer=functools.partial(bert.layer, names=LAYER),
    own=('pos_key_proj', 'pos_query_proj'),
  ),
)
