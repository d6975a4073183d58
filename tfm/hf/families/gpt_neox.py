"""GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023)."""

from tfm.hf.families import _rope_fields
from tfm.hf.families._config_fields import AliasField, ConfigConstant, IgnoredFields, MappedField
from tfm.hf.families._field_converters import ACTIVATIONS, spec_argument, value_map
from tfm.hf.families.protocol import Family, Part, Weight, bias_letters, block_paths, linear, norm


def fields(output):
  yield from (
    MappedField('num_hidden_layers', 'model.layers', default=44),
    MappedField('hidden_size', 'model.width', default=6144),
    MappedField('num_attention_heads', 'model.heads', default=64),
    MappedField('intermediate_size', 'model.feed_forward_width', default=24576),
    MappedField('hidden_act', 'model.feed_forward', ACTIVATIONS, default='gelu'),
    MappedField('layer_norm_eps', 'model.norm', spec_argument('layernorm', 'epsilon', 1e-5), default=1e-5),
    MappedField(
      'use_parallel_residual',
      'model.residual',
      value_map({True: 'parallel', False: 'sequential'}),
      default=True,
    ),
    MappedField(
      'attention_bias', 'model.mixer', value_map({True: 'softmax', False: "softmax(biases='')"}), default=True
    ),
    _rope_fields.position_field(
      theta='rotary_emb_base', fraction='rotary_pct', default_fraction=0.25, default_length=2048, partial=True
    ),
    AliasField('rope_theta', 'rotary_emb_base', 10_000.0),
    AliasField('partial_rotary_factor', 'rotary_pct', 0.25),
    MappedField('max_position_embeddings', 'data.length', default=2048),
    MappedField('attention_dropout', 'model.dropout.attention', default=0.0),
    MappedField('hidden_dropout', 'model.dropout.embedding', default=0.0),
    MappedField('hidden_dropout', 'model.dropout.residual', default=0.0),
    MappedField('tie_word_embeddings', 'model.tie_embeddings', default=False),
    MappedField('vocab_size', 'vocab', default=50432),
    MappedField('eos_token_id', 'ids.eos', default=2),
    MappedField('pad_token_id', 'ids.pad', default=None),
    ConfigConstant('model.bias', True),
    IgnoredFields('is_decoder', 'attention_probs_dropout_prob', 'hidden_dropout_prob', 'custom_pipelines'),
  )


def weights(config):
  m = config.model
  yield Weight('gpt_neox.embed_in.weight', 'embedding/table')
  for i, block in enumerate(block_paths(config)):
    yield from layer(f'gpt_neox.layers.{i}', block, m)
  yield from norm('gpt_neox.final_layer_norm', 'norm', bias=True)
  if not m.tie_embeddings:
    yield Weight('embed_out.weight', 'output/kernel', 'v d -> d v')


PARTS = dict(
  qkv='attention.query_key_value', out='attention.dense', up='mlp.dense_h_to_4h', down='mlp.dense_4h_to_h'
)
NORMS = dict(input_layernorm='mixer_norm', post_attention_layernorm='feed_forward_norm')


def layer(name, path, section, parts=PARTS, norms=NORMS):
  """A block with one projection of queries, keys and values; `parts` and `norms` are its tensor names."""
  with_bias = bias_letters(section) == 'qkvo'
  for hf_name, tfm_name in norms.items():
    yield from norm(f'{name}.{hf_name}', f'{path}/{tfm_name}', bias=True)
  yield from fused_projection(f'{name}.{parts["qkv"]}', f'{path}/mixer', section, with_bias)
  yield from output_projection(f'{name}.{parts["out"]}', f'{path}/mixer/out', section, with_bias)
  yield from linear(f'{name}.{parts["up"]}', f'{path}/feed_forward/up', 'f d -> d f', section.bias)
  yield from linear(f'{name}.{parts["down"]}', f'{path}/feed_forward/down', 'd f -> f d', section.bias)


def fused_projection(name, path, section, bias):
  """One projection of queries, keys and values, group by group of heads: queries, key, value."""
  K, G = section.kv_heads, section.heads // section.kv_heads
  for hf_name, tfm_name, d in (('weight', 'kernel', 'd '), ('bias', 'bias', '')):
    if bias or tfm_name == 'kernel':
      queries = Part(f'{path}/q/{tfm_name}', G, f'g {d}k c -> {d}(k g) c', dict(k=K))
      yield Weight(
        f'{name}.{hf_name}',
        (queries, f'{path}/k/{tfm_name}', f'{path}/v/{tfm_name}'),
        f'(k n c) {d} -> n {d} k c',
        dict(k=K, n=G + 2),
      )


def output_projection(name, path, section, bias):
  """The output projection of attention."""
  yield Weight(f'{name}.weight', f'{path}/kernel', 'd (h c) -> h c d', dict(h=section.heads))
  if bias:
    yield Weight(f'{name}.bias', f'{path}/bias')


FAMILIES = (
  Family(
    model_type='gpt_neox',
    architectures={'GPTNeoXForCausalLM': 'vocabulary', 'GPTNeoXModel': 'features'},
    fields=fields,
    weights=weights,
    prefix='gpt_neox.',
    ignored_tensors=r'(gpt_neox\.)?layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)|(embed_out|lm_head)\.weight',
  ),
)
