"""DistilBERT (Sanh et al. 2019)."""

from tfm.hf.families import bert
from tfm.hf.families.fields import PLAIN, Always, Ignored, Only, Same, classes, learned
from tfm.hf.families.protocol import Family, Weight, blocks, both, norm


def fields(output):
  yield from (
    Always('model.architecture', 'encoder'),
    Always('model.norm_placement', 'post'),
    Always('model.norm', 'layernorm(epsilon=1e-12)'),
    Always('model.embedding_norm', True),
    Always('model.bias', True),
    Same('n_layers', 'model.layers', default=6),
    Same('dim', 'model.width', default=768),
    Same('n_heads', 'model.heads', default=12),
    Same('hidden_dim', 'model.feed_forward_width', default=3072),
    Same('activation', 'model.feed_forward', PLAIN, default='gelu'),
    learned('max_position_embeddings', 512),
    Same('dropout', 'model.dropout.embedding', default=0.1),
    Same('dropout', 'model.dropout.residual', default=0.1),
    Same('attention_dropout', 'model.dropout.attention', default=0.1),
    Same('tie_word_embeddings', 'model.tie_embeddings', default=True),
    Same('vocab_size', 'vocab', default=30522),
    Same('pad_token_id', 'ids.pad', default=0),
    Same('eos_token_id', 'ids.eos', default=None),
    Only(tie_weights_=True),
    Ignored(
      'sinusoidal_pos_embds', 'qa_dropout', 'seq_classif_dropout'
    ),  # what the table began from; and training
    *classes(output),
  )
  if output == 'vocabulary':
    yield Same('activation', 'model.output_transform', PLAIN, default='gelu')
    yield Always('model.output_bias', True)
  if output == 'classes':
    yield Always('model.pooled_transform', 'relu')


def weights(config):
  m = config.model
  yield from bert.embeddings('distilbert.embeddings', config)
  yield Weight('distilbert.embeddings.position_embeddings.weight', 'position_0/table')
  for i, block in enumerate(blocks(config)):
    yield from bert.layer(f'distilbert.transformer.layer.{i}', block, m, LAYER)
  if m.output_bias:
    yield from both('vocab_transform', 'transform/dense', 'f d -> d f', True)
    yield from norm('vocab_layer_norm', 'transform/norm', bias=True)
    yield Weight('vocab_projector.bias', 'bias/bias')
    if not m.tie_embeddings:
      yield Weight('vocab_projector.weight', 'output/kernel', 'v d -> d v')
  if config.objective.startswith('classification'):
    if m.pooled_transform:
      yield from both('pre_classifier', 'classification/transform/dense', 'f d -> d f', True)
    yield from both('classifier', 'classification/classes', 'n d -> d n', True)


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
      'DistilBertForTokenClassification': 'classes of words',
    },
    fields=fields,
    weights=weights,
    prefix='distilbert.',
    counts='all',
    ignored=r'(distilbert\.)?embeddings\.position_ids|vocab_projector\.weight',
  ),
)
