"""BLOOM (BigScience Workshop 2022)."""

from tfm.hf.families import gpt_neox
from tfm.hf.families.fields import Always, Ignored, Only, Same, argument
from tfm.hf.families.protocol import Family, Weight, blocks, norm


def fields(output):
  yield from (
    Same('n_layer', 'model.layers', default=2, older=('num_hidden_layers',)),
    Same('hidden_size', 'model.width', default=64, older=('n_embed',)),
    Same('n_head', 'model.heads', default=8, older=('num_attention_heads',)),
    Same('seq_length', 'data.length', default=2048),
    Same('layer_norm_epsilon', 'model.norm', argument('layernorm', 'epsilon', 1e-5), default=1e-5),
    Same('hidden_dropout', 'model.dropout.residual', default=0.0),
    Same('attention_dropout', 'model.dropout.attention', default=0.0),
    Same('tie_word_embeddings', 'model.tie_embeddings', default=True),
    Same('vocab_size', 'vocab', default=250880),
    Same('eos_token_id', 'ids.eos', default=2),
    Same('pad_token_id', 'ids.pad', default=None),
    Always('model.position', 'alibi'),
    Always('model.feed_forward', 'gelu_tanh'),
    Always('model.bias', True),
    Always('model.embedding_norm', True),
    Only(apply_residual_connection_post_layernorm=False),
    # How sums are split, and what the kernels of its training did at once; its hidden layer is always four times as wide.
    Ignored(
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
  for i, block in enumerate(blocks(config)):
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
    ignored=r'lm_head\.weight',
  ),
)
