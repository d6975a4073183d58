"""GPT-BigCode: SantaCoder (Allal et al. 2023) and StarCoder (Li et al. 2023)."""

from tfm.hf.families import gpt2, gpt_neox
from tfm.hf.families._config_fields import CustomField, IgnoredFields
from tfm.hf.families.protocol import Family, Weight, block_paths, norm


def fields(output):
  yield from gpt2.shared()
  yield from (
    CustomField(
      lambda hf_config: {'model.kv_heads': 1 if hf_config.get('multi_query', True) else None},
      write_multi_query,
    ),
    # Our softmax is in float32; the rest configures an inference server.
    IgnoredFields(
      'attention_softmax_in_fp32',
      'scale_attention_softmax_in_fp32',
      'num_key_value_heads',
      'n_ctx',
      'inference_runner',
      'max_batch_size',
      'max_sequence_length',
      'pad_key_length',
      'pre_allocate_kv_cache',
      'validate_runner_input',
    ),
  )


def write_multi_query(config):
  """Multi-query or multi-head attention."""
  heads, shared = config['model.heads'], config['model.kv_heads']
  if shared not in (1, heads):
    raise ValueError(f'config.model.kv_heads={shared} is not supported by the family; use 1 or {heads}')
  return dict(multi_query=shared == 1)


def weights(config):
  m = config.model
  yield Weight('transformer.wte.weight', 'embedding/table')
  yield Weight('transformer.wpe.weight', 'position_0/table')
  for i, block in enumerate(block_paths(config)):
    yield from gpt_neox.layer(f'transformer.h.{i}', block, m, PARTS, NORMS)
  yield from norm('transformer.ln_f', 'norm', bias=True)
  if not m.tie_embeddings:
    yield Weight('lm_head.weight', 'output/kernel', 'v d -> d v')


PARTS = dict(qkv='attn.c_attn', out='attn.c_proj', up='mlp.c_fc', down='mlp.c_proj')
NORMS = dict(ln_1='mixer_norm', ln_2='feed_forward_norm')

FAMILIES = (
  Family(
    model_type='gpt_bigcode',
    architectures={'GPTBigCodeForCausalLM': 'vocabulary', 'GPTBigCodeModel': 'features'},
    fields=fields,
    weights=weights,
    prefix='transformer.',
    ignored_tensors=r'(transformer\.)?(bias|h\.\d+\.attn\.(masked_)?bias)|lm_head\.weight',
  ),
)
