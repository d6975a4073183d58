"""DeBERTa 1 to 3 (He et al. 2021a, 2021b)."""

import functools

import tfm.residuals
from tfm.hf.families import bert
from tfm.hf.families._config_fields import (
  ConfigConstant,
  CustomField,
  IgnoredFields,
  MappedField,
  SupportedValues,
)
from tfm.hf.families._field_converters import value_map
from tfm.hf.families._layer_patterns import layer_count, layer_pattern, layer_sections, layer_values
from tfm.hf.families.protocol import Family, Weight, block_paths, linear, norm
from tfm.residuals.convolved import Convolved
from tfm.residuals.protocol import Residual
from tfm.spec import Call, build, parse


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
  """The fields that all versions share."""
  yield from (
    MappedField('type_vocab_size', 'model.token_types', default=0),
    MappedField('pad_token_id', 'ids.pad', default=0),
    CustomField(check_embedding_size, lambda config: {}),
    # Sizes that follow from others, tensor names, and training.
    IgnoredFields('padding_idx', 'pooler_hidden_size', 'legacy', 'pooler_dropout', 'cls_dropout'),
    MappedField('pooler_hidden_act', 'model.pooled_transform', ACTIVATIONS, default='gelu')
    if output == 'classes'
    else IgnoredFields('pooler_hidden_act'),
  )


def fields_v1(output):
  """Version 1: one projection of queries, keys and values; keys have no bias."""
  yield from bert.shared(output, **FIRST)
  yield from shared(output)
  yield ConfigConstant('model.mixer', "softmax(biases='qvo')")
  yield CustomField(read_positions, functools.partial(write_positions, ()))
  yield SupportedValues(talking_head=False)


def fields_v2(output):
  """Versions 2 and 3."""
  yield from bert.shared(output, **SECOND)
  yield from shared(output)
  yield MappedField('attention_head_size', 'model.head_width', default=None)
  yield CustomField(
    lambda hf_config: read_positions(hf_config, *read_v2_arguments(hf_config)),
    functools.partial(write_positions, V2_ARGUMENTS),
  )
  yield CustomField(read_convolution, write_convolution)


ACTIVATIONS = value_map(gelu='gelu', tanh='tanh', relu='relu', gelu_new='gelu_tanh', silu='silu')
# Arguments of the position that version 2 introduced.
V2_ARGUMENTS = 'buckets', 'norm', 'epsilon', 'share_qk_projections'
ARGUMENTS = 'max_distance', 'buckets', 'c2p', 'p2c', 'norm', 'epsilon', 'share_qk_projections'


def read_convolution(hf_config):
  """The first layer's residual, which may have a convolution, and that of the others."""
  count, taps = (
    layer_count(hf_config, 'num_hidden_layers', SECOND['num_hidden_layers']),
    hf_config.get('conv_kernel_size', 0),
  )
  activation, groups = hf_config.get('conv_act', 'tanh'), hf_config.get('conv_groups', 1)
  if not taps:
    return {}
  if groups != 1:
    raise ValueError(f'config.json: conv_groups={groups!r} is not supported; use 1')
  try:
    residual = Convolved(taps, ACTIVATIONS.read(activation))
  except ValueError as error:
    raise ValueError(f'config.json: conv_kernel_size={taps!r}, conv_act={activation!r}: {error}') from None
  call = Call('convolved', (residual.taps,), dict(activation=residual.activation))
  kinds = ['convolved'] + ['plain'] * (count - 1)
  return layer_pattern(kinds, dict(convolved=dict(residual=str(call)), plain=dict(residual=None)))


def write_convolution(config):
  first = build(layer_values(config, 'residual')[0], tfm.residuals, Residual)
  if not isinstance(first, Convolved):
    return dict(conv_kernel_size=0)
  return dict(conv_kernel_size=first.taps, conv_act=ACTIVATIONS.write(first.activation))


def check_embedding_size(hf_config):
  """Rejects an embedding of another width, which has projections that our model lacks."""
  if (size := hf_config.get('embedding_size', None)) not in (None, hf_config.get('hidden_size', None)):
    raise ValueError(f'config.json: embedding_size={size!r} is not supported; use the value of hidden_size')
  return {}


def read_v2_arguments(hf_config):
  """(buckets, whether there is a norm, whether positions use the projections of the content)."""
  has_norm = hf_config.get('norm_rel_ebd', 'none')
  if has_norm not in ('none', 'layer_norm'):
    raise ValueError(f"config.json: norm_rel_ebd={has_norm!r} is not supported; use 'none' or 'layer_norm'")
  return (
    max(hf_config.get('position_buckets', -1), 0),
    has_norm == 'layer_norm',
    hf_config.get('share_att_key', False),
  )


def read_positions(hf_config, buckets=0, has_norm=False, share_qk_projections=False):
  """Disentangled positions, learned absolute positions, or none."""
  relative, absolute = (
    hf_config.get('relative_attention', False),
    hf_config.get('position_biased_input', True),
  )
  types, longest = hf_config.get('pos_att_type', None), hf_config.get('max_position_embeddings', 512)
  span, epsilon = hf_config.get('max_relative_positions', -1), hf_config.get('layer_norm_eps', 1e-7)
  terms = {term.strip() for term in (types.lower().split('|') if isinstance(types, str) else types or ())}
  if terms - {'c2p', 'p2c'} or bool(terms) != relative:
    raise ValueError(
      f'config.json: pos_att_type={types!r} is not supported with relative_attention={relative}; use '
      "'c2p', 'p2c' or both with True, and none with False"
    )
  if relative and absolute:
    raise ValueError(
      'config.json: position_biased_input=True is not supported with relative_attention=True; '
      'set one of them to False'
    )
  if has_norm and not relative:
    raise ValueError(
      "config.json: norm_rel_ebd='layer_norm' is not supported with relative_attention=False; use 'none'"
    )
  if not relative:
    return {'model.position': f'learned(rows={longest})' if absolute else 'none', 'data.length': longest}
  kwargs = dict(buckets=buckets) if buckets else {}
  kwargs |= {term: False for term in ('c2p', 'p2c') if term not in terms}
  kwargs |= dict(norm=True, epsilon=epsilon) if has_norm else {}
  kwargs |= dict(share_qk_projections=True) if share_qk_projections else {}
  position = Call('deberta', (span if span > 0 else longest,), kwargs)
  return {'model.position': str(position), 'data.length': longest}


def write_positions(v2_arguments, config):
  call, length = parse(config['model.position']), config['data.length']
  kwargs = dict(zip(ARGUMENTS, call.args)) | dict(call.kwargs)
  if call.name in ('learned', 'none') and not kwargs.keys() - {'rows'}:
    return dict(
      relative_attention=False,
      position_biased_input=call.name == 'learned',
      pos_att_type=[],
      max_position_embeddings=kwargs.get('rows', length),
    )
  if call.name != 'deberta' or kwargs.keys() - {'max_distance', 'c2p', 'p2c', *v2_arguments}:
    raise ValueError(
      f"config.model.position={config['model.position']!r} is not supported by the family; use 'deberta(512)'"
    )
  fields = dict(
    relative_attention=True,
    position_biased_input=False,
    max_position_embeddings=length,
    max_relative_positions=kwargs.get('max_distance', 512),
    pos_att_type=[term for term in ('p2c', 'c2p') if kwargs.get(term, True)],
  )
  return fields | (
    dict(
      position_buckets=kwargs.get('buckets') or -1,
      norm_rel_ebd='layer_norm' if kwargs.get('norm') else 'none',
      share_att_key=kwargs.get('share_qk_projections', False),
    )
    if v2_arguments
    else {}
  )


def weights(config, layer, position_names):
  """
  Args:
    layer: (name, path, section) → a block's weights.
    position_names: of the projections of positions, as keys and as queries.
  """
  m = config.model
  yield from bert.embeddings('deberta.embeddings', config)
  call = parse(m.position)
  kwargs = dict(zip(ARGUMENTS, call.args)) | dict(call.kwargs)
  if call.name == 'learned':
    yield Weight('deberta.embeddings.position_embeddings.weight', 'position_0/table')
  if call.name == 'deberta':
    yield Weight('deberta.encoder.rel_embeddings.weight', 'position_0/table')
  if kwargs.get('norm'):
    yield from norm('deberta.encoder.LayerNorm', 'position_0/table_norm', bias=True)
  for i, (block, section) in enumerate(zip(block_paths(config), layer_sections(config))):
    name = f'deberta.encoder.layer.{i}'
    yield from layer(name, block, m)
    if parse(section.residual).name == 'convolved':
      convolution = 'deberta.encoder.conv'
      yield Weight(f'{convolution}.conv.weight', f'{block}/convolution/kernel', 'e d k -> k d e')
      yield Weight(f'{convolution}.conv.bias', f'{block}/convolution/bias')
      yield from norm(f'{convolution}.LayerNorm', f'{block}/convolution_norm', bias=True)
    if call.name == 'deberta' and not kwargs.get('share_qk_projections'):
      for term, hf_name, tfm_name in zip(('c2p', 'p2c'), position_names, ('key', 'query')):
        if kwargs.get(term, True):
          # A bias of keys shifts all logits of a query equally and has no effect: ours has none.
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


def fused_layer(name, path, section):
  """A block with one projection of queries, keys and values, head by head."""
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


def family(model_type, classes, fields, **weight_options):
  """One version; its class names start with `classes`."""
  return Family(
    model_type=model_type,
    architectures={
      f'{classes}Model': 'features',
      f'{classes}ForMaskedLM': 'vocabulary',
      f'{classes}ForSequenceClassification': 'classes',
      f'{classes}ForTokenClassification': 'token_classes',
    },
    fields=fields,
    weights=functools.partial(weights, **weight_options),
    prefix='deberta.',
    position_counting='all',
    ignored_tensors=r'(deberta\.)?embeddings\.position_ids|cls\.predictions\.(bias|decoder\.(weight|bias))',
    unused_tensors=r'(deberta\.)?embeddings\.position_embeddings\.weight|.*\.pos_key_proj\.bias|(cls|mask_predictions|pooler)\..*',
  )


FAMILIES = (
  family('deberta', 'Deberta', fields_v1, layer=fused_layer, position_names=('pos_proj', 'pos_q_proj')),
  family(
    'deberta-v2',
    'DebertaV2',
    fields_v2,
    layer=functools.partial(bert.layer, names=LAYER),
    position_names=('pos_key_proj', 'pos_query_proj'),
  ),
)
