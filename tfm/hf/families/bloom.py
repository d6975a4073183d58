"""BLOOM (BigScience Workshop 2022)."""

from tfm.hf.families import gpt_neox
from tfm.hf.families._config_fields import ConfigConstant, IgnoredFields, MappedField
from tfm.hf.families._field_converters import spec_argument, value_map
from tfm.hf.families.protocol import Family, Weight, block_paths, norm


RESIDUALS = value_map({False: 'sequential', True: 'normed'})


def fields(output):
  yield from (
    MappedField('n_layer', 'model.layers', default=2, aliases=('num_hidden_layers',)),
    MappedField('hidden_size', 'model.width', default=64, aliases=('n_embed',)),
    MappedField('n_head', 'model.heads', default=8, aliases=('num_attention_heads',)),
    MappedField('seq_length', 'data.length', default=2048),
    MappedField(
      'layer_norm_epsilon', 'model.norm', spec_argument('layernorm', 'epsilon', 1e-5), default=1e-5
    ),
    MappedField('hidden_dropout', 'model.dropout.residual', default=0.0),
    MappedField('attention_dropout', 'model.dropout.attention', default=0.0),
    MappedField('tie_word_embeddings', 'model.tie_embeddings', default=True),
    MappedField('vocab_size', 'vocab', default=250880),
    MappedField('eos_token_id', 'ids.eos', default=2),
    MappedField('pad_token_id', 'ids.pad', default=None),
    ConfigConstant('model.position', 'alibi'),
    ConfigConstant('model.feed_forward', 'gelu_tanh'),
    ConfigConstant('model.bias', True),
    ConfigConstant('model.embedding_norm', True),
    MappedField('apply_residual_connection_post_layernorm', 'model.residual', RESIDUALS, default=False),
    # Options of sharded sums and fused training kernels; n_inner is ignored, the hidden layer is 4 times as
    # wide.
    IgnoredFields(
      'slow_but_exact',
      'attention_softmax_in_fp32',
      'bias_dropout_fusion',
      'masked_softmax_fusion',
      'offset_alibi',
      'skip_bias_add',
      'skip_bias_add_qkv',
      'n_inner',
    ),
  )


def weights(config):
  m = config.model
  yield Weight('transformer.word_embeddings.weight', 'embedding/table')
  yield from norm('transformer.word_embeddings_layernorm', 'embedding_norm', bias=True)
  for i, block in enumerate(block_paths(config)):
    yield from gpt_neox.layer(f'transformer.h.{i}', block, m, PARTS)
  yield from norm('transformer.ln_f', 'norm', bias=True)
  if not m.tie_embeddings:
    yield Weight('lm_head.weight', 'output/kernel', 'v d -> d v')


PARTS = gpt_neox.PARTS | dict(qkv='self_attention.query_key_value', out='self_attention.dense')

FAMILIES = (
  Family(
    model_type='bloom',
    architectures={'BloomForCausalLM': 'vocabulary', 'BloomModel': 'features'},
    fields=fields,
    weights=weights,
    prefix='transformer.',
    ignored_tensors=r'lm_head\.weight',
  ),
)
