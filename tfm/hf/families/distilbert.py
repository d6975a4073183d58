"""DistilBERT (Sanh et al. 2019)."""

from tfm.hf.families import bert
from tfm.hf.families._config_fields import (
  ConfigConstant,
  IgnoredFields,
  MappedField,
  SupportedValues,
  class_count,
  learned_position,
)
from tfm.hf.families._field_converters import ACTIVATIONS
from tfm.hf.families.protocol import Family, Weight, block_paths, linear, norm


def fields(output):
  yield from (
    ConfigConstant('model.architecture', 'encoder'),
    ConfigConstant('model.norm_placement', 'post'),
    ConfigConstant('model.norm', 'layernorm(epsilon=1e-12)'),
    ConfigConstant('model.embedding_norm', True),
    ConfigConstant('model.bias', True),
    MappedField('n_layers', 'model.layers', default=6),
    MappedField('dim', 'model.width', default=768),
    MappedField('n_heads', 'model.heads', default=12),
    MappedField('hidden_dim', 'model.feed_forward_width', default=3072),
    MappedField('activation', 'model.feed_forward', ACTIVATIONS, default='gelu'),
    learned_position('max_position_embeddings', 512),
    MappedField('dropout', 'model.dropout.embedding', default=0.1),
    MappedField('dropout', 'model.dropout.residual', default=0.1),
    MappedField('attention_dropout', 'model.dropout.attention', default=0.1),
    MappedField('tie_word_embeddings', 'model.tie_embeddings', default=True),
    MappedField('vocab_size', 'vocab', default=30522),
    MappedField('pad_token_id', 'ids.pad', default=0),
    MappedField('eos_token_id', 'ids.eos', default=None),
    SupportedValues(tie_weights_=True),
    IgnoredFields(
      'sinusoidal_pos_embds', 'qa_dropout', 'seq_classif_dropout'
    ),  # initialization of the table, and training
    *class_count(output),
  )
  if output == 'vocabulary':
    yield MappedField('activation', 'model.output_transform', ACTIVATIONS, default='gelu')
    yield ConfigConstant('model.output_bias', True)
  if output == 'classes':
    yield ConfigConstant('model.pooled_transform', 'relu')


def weights(config):
  m = config.model
  yield from bert.embeddings('distilbert.embeddings', config)
  yield Weight('distilbert.embeddings.position_embeddings.weight', 'position_0/table')
  for i, block in enumerate(block_paths(config)):
    yield from bert.layer(f'distilbert.transformer.layer.{i}', block, m, LAYER)
  if m.output_bias:
    yield from linear('vocab_transform', 'transform/dense', 'f d -> d f', True)
    yield from norm('vocab_layer_norm', 'transform/norm', bias=True)
    yield Weight('vocab_projector.bias', 'bias/bias')
    if not m.tie_embeddings:
      yield Weight('vocab_projector.weight', 'output/kernel', 'v d -> d v')
  if config.objective.startswith('classification'):
    if m.pooled_transform:
      yield from linear('pre_classifier', 'classification/transform/dense', 'f d -> d f', True)
    yield from linear('classifier', 'classification/classes', 'n d -> d n', True)


LAYER = dict(
  q='attention.q_lin',
  k='attention.k_lin',
  v='attention.v_lin',
  out='attention.out_lin',
  mixer_norm='sa_layer_norm',
  up='ffn.lin1',
  down='ffn.lin2',
  feed_forward_norm='output_layer_norm',
)

FAMILIES = (
  Family(
    model_type='distilbert',
    architectures={
      'DistilBertForMaskedLM': 'vocabulary',
      'DistilBertModel': 'features',
      'DistilBertForSequenceClassification': 'classes',
      'DistilBertForTokenClassification': 'token_classes',
    },
    fields=fields,
    weights=weights,
    prefix='distilbert.',
    position_counting='all',
    ignored_tensors=r'(distilbert\.)?embeddings\.position_ids|vocab_projector\.weight',
  ),
)
