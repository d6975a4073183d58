"""GPT-BigCode: SantaCoder (Allal et al. 2023) and StarCoder (Li et al. 2023)."""

from tfm.families.fields import PLAIN, Always, Both, Ignored, Only, Same, argument, learned
from tfm.families.gpt_neox import fused, out
from tfm.families.protocol import Family, Weight, blocks, both, norm


def fields(output):
  yield from (
    Same('n_layer', 'model.layers', default=12),
    Same('n_embd', 'model.width', default=768),
    Same('n_head', 'model.heads', default=12),
    Both(lambda given: {'model.kv_heads': 1 if given.take('multi_query', True) else None}, shares),
    learned('n_positions', default=1024),
    Same('n_inner', 'model.feed_forward_width', default=None),
    Same('activation_function', 'model.feed_forward', PLAIN, default='gelu_pytorch_tanh'),
    Same('layer_norm_epsilon', 'model.norm', argument('layernorm', 'epsilon', 1e-5), default=1e-5),
    Same('embd_pdrop', 'model.dropout.embedding', default=0.1),
    Same('attn_pdrop', 'model.dropout.attention', default=0.1),
    Same('resid_pdrop', 'model.dropout.residual', default=0.1),
    Same('tie_word_embeddings', 'model.tied', default=True),
    Same('vocab_size', 'vocab', default=50257),
    Same('eos_token_id', 'ids.eos', default=50256),
    Same('pad_token_id', 'ids.pad', default=None),
    Always('model.bias', True),
    Only(scale_attn_weights=True),
    # Softmax is in float32 here; what else is left is told to a server.
    Ignored('attention_softmax_in_fp32', 'scale_attention_softmax_in_fp32', 'num_key_value_heads', 'n_ctx',
            'inference_runner', 'max_batch_size', 'max_sequence_length', 'pad_key_length', 'pre_allocate_kv_cache',
            'validate_runner_input'),
  )


def shares(config):
  """Whether all heads read one key and value, or each its own."""
  heads, shared = config['model.heads'], config['model.kv_heads']
  if shared not in (1, heads):
    raise ValueError(f'config.model.kv_heads={shared} is not said by the family; 1 or {heads} would be')
  return dict(multi_query=shared == 1)


def weights(config):
  m = config.model
  yield Weight('transformer.wte.weight', 'embedding/table')
  yield Weight('transformer.wpe.weight', 'position_0/table')
  for i, block in enumerate(blocks(config)):
    name = f'transformer.h.{i}'
    yield from norm(f'{name}.ln_1', f'{block}/mixer_norm', bias=True)
    yield from norm(f'{name}.ln_2', f'{block}/feed_forward_norm', bias=True)
    yield from fused(f'{name}.attn.c_attn', f'{block}/mixer', m, bias=True)
    yield from out(f'{name}.attn.c_proj', f'{block}/mixer/out', m, bias=True)
    yield from both(f'{name}.mlp.c_fc', f'{block}/feed_forward/up', 'f d -> d f', bias=True)
    yield from both(f'{name}.mlp.c_proj', f'{block}/feed_forward/down', 'd f -> f d', bias=True)
  yield from norm('transformer.ln_f', 'norm', bias=True)
  if not m.tied:
    yield Weight('lm_head.weight', 'output/kernel', 'v d -> d v')


FAMILIES = (Family(
  model_type='gpt_bigcode', architectures={'GPTBigCodeForCausalLM': 'vocabulary', 'GPTBigCodeModel': 'features'},
  fields=fields, weights=weights, prefix='transformer.',
  ignored=r'(transformer\.)?(bias|h\.\d+\.attn\.(masked_)?bias)|lm_head\.weight'),)
