"""BERT (Devlin et al. 2019)."""

from collections.abc import Iterator, Mapping

from tfm.hf.families._config_fields import (
  ConfigConstant,
  IgnoredFields,
  MappedField,
  SupportedValues,
  class_count,
  learned_position,
)
from tfm.hf.families._field_converters import ACTIVATIONS, spec_argument
from tfm.hf.families.protocol import Family, Weight, bias_letters, block_paths, linear, norm


def fields(output):
  yield from shared(output)
  yield learned_position('max_position_embeddings', 512)
  yield MappedField('type_vocab_size', 'model.token_types', default=2)
  yield MappedField('pad_token_id', 'ids.pad', default=0)
  yield SupportedValues(position_embedding_type='absolute')
  yield IgnoredFields(
    'directionality',
    'pooler_fc_size',
    'pooler_num_attention_heads',
    'pooler_num_fc_layers',
    'pooler_size_per_head',
    'pooler_type',
  )
  if output == 'classes':
    yield ConfigConstant('model.pooled_transform', 'tanh')


# Defaults of the published config class.
DEFAULTS = dict(
  num_hidden_layers=12,
  hidden_size=768,
  num_attention_heads=12,
  intermediate_size=3072,
  layer_norm_eps=1e-12,
  vocab_size=30522,
  eos_token_id=None,
)


def shared(output, transform=None, **defaults):
  """The fields that BERT shares with its descendants.

  Args:
    transform: the activation of the layer before the vocabulary; None: hidden_act.
    defaults: that differ from BERT's.
  """
  all_defaults = DEFAULTS | defaults

  def mapped(name, path, *converter):
    return MappedField(name, path, *converter, default=all_defaults[name])

  yield from (
    ConfigConstant('model.architecture', 'encoder'),
    ConfigConstant('model.norm_placement', 'post'),
    ConfigConstant('model.embedding_norm', True),
    ConfigConstant('model.bias', True),
    mapped('num_hidden_layers', 'model.layers'),
    mapped('hidden_size', 'model.width'),
    mapped('num_attention_heads', 'model.heads'),
    mapped('intermediate_size', 'model.feed_forward_width'),
    MappedField('hidden_act', 'model.feed_forward', ACTIVATIONS, default='gelu'),
    mapped('layer_norm_eps', 'model.norm', spec_argument('layernorm', 'epsilon', 1e-5)),
    MappedField('hidden_dropout_prob', 'model.dropout.embedding', default=0.1),
    MappedField('hidden_dropout_prob', 'model.dropout.residual', default=0.1),
    MappedField('attention_probs_dropout_prob', 'model.dropout.attention', default=0.1),
    MappedField('tie_word_embeddings', 'model.tie_embeddings', default=True),
    mapped('vocab_size', 'vocab'),
    mapped('eos_token_id', 'ids.eos'),
    *class_count(output),
  )
  if output == 'vocabulary':
    yield (
      ConfigConstant('model.output_transform', transform)
      if transform
      else MappedField('hidden_act', 'model.output_transform', ACTIVATIONS, default='gelu')
    )
    yield ConfigConstant('model.output_bias', True)


def weights(config):
  m = config.model
  yield from embeddings('bert.embeddings', config)
  yield Weight('bert.embeddings.position_embeddings.weight', 'position_0/table')
  for i, block in enumerate(block_paths(config)):
    yield from layer(f'bert.encoder.layer.{i}', block, m, LAYER)
  if m.output_bias:
    yield from vocabulary(
      m, 'cls.predictions.transform.dense', 'cls.predictions.transform.LayerNorm', 'cls.predictions'
    )
  if config.objective.startswith('classification'):
    if m.pooled_transform:
      yield from linear('bert.pooler.dense', 'classification/transform/dense', 'f d -> d f', True)
    yield from linear('classifier', 'classification/classes', 'n d -> d n', True)


def embeddings(name: str, config) -> Iterator[Weight]:
  """The embeddings of tokens and token types, and the norm after them."""
  yield Weight(f'{name}.word_embeddings.weight', 'embedding/table')
  if config.model.token_types:
    yield Weight(f'{name}.token_type_embeddings.weight', 'type_embedding/table')
  yield from norm(f'{name}.LayerNorm', 'embedding_norm', bias=True)


def layer(name: str, path: str, section, names: Mapping[str, str]) -> Iterator[Weight]:
  """A block of softmax attention and a feed-forward layer without gate.

  Args:
    names: part → tensor name, as in `LAYER`; parts without a name have no tensor.
  """
  with_bias, heads = bias_letters(section), dict(h=section.heads)
  for letter in [letter for letter in 'qkv' if letter in names]:
    yield from linear(
      f'{name}.{names[letter]}',
      f'{path}/mixer/{letter}',
      '(h c) d -> d h c',
      letter in with_bias,
      sizes=heads,
    )
  yield Weight(f'{name}.{names["out"]}.weight', f'{path}/mixer/out/kernel', 'd (h c) -> h c d', heads)
  if 'o' in with_bias:
    yield Weight(f'{name}.{names["out"]}.bias', f'{path}/mixer/out/bias')
  for part in ('up', 'down'):
    yield from linear(f'{name}.{names[part]}', f'{path}/feed_forward/{part}', 'f d -> d f', section.bias)
  for part in ('mixer_norm', 'feed_forward_norm'):
    yield from norm(f'{name}.{names[part]}', f'{path}/{part}', bias=True)


def vocabulary(section, dense: str, after: str, output: str) -> Iterator[Weight]:
  """The layer before the vocabulary, its norm, and the output; an untied output has its own bias."""
  yield from linear(dense, 'transform/dense', 'f d -> d f', True)
  yield from norm(after, 'transform/norm', bias=True)
  if section.tie_embeddings:
    yield Weight(f'{output}.bias', 'bias/bias')
  else:
    yield Weight(f'{output}.decoder.weight', 'output/kernel', 'v d -> d v')
    yield Weight(f'{output}.decoder.bias', 'bias/bias')


LAYER = dict(
  q='attention.self.query',
  k='attention.self.key',
  v='attention.self.value',
  out='attention.output.dense',
  mixer_norm='attention.output.LayerNorm',
  up='intermediate.dense',
  down='output.dense',
  feed_forward_norm='output.LayerNorm',
)

FAMILIES = (
  Family(
    model_type='bert',
    architectures={
      'BertForMaskedLM': 'vocabulary',
      'BertForPreTraining': 'vocabulary',
      'BertModel': 'features',
      'BertForSequenceClassification': 'classes',
      'BertForTokenClassification': 'token_classes',
    },
    fields=fields,
    weights=weights,
    prefix='bert.',
    position_counting='all',
    ignored_tensors=r'(bert\.)?embeddings\.position_ids|cls\.predictions\.(bias|decoder\.(weight|bias))',
    unused_tensors=r'(bert\.)?pooler\.dense\.(weight|bias)|cls\.seq_relationship\.(weight|bias)',
  ),
)
