"""MPT (MosaicML 2023)."""

from tfm.hf.families._config_fields import (
  ConfigConstant,
  EquivalentValues,
  IgnoredFields,
  MappedField,
  NestedFields,
  SupportedValues,
)
from tfm.hf.families._field_converters import Converter, spec_argument
from tfm.hf.families.gpt_neox import output_projection
from tfm.hf.families.protocol import Family, Weight, block_paths, linear, norm
from tfm.spec import parse


def fields(output):
  yield from (
    MappedField('n_layers', 'model.layers', default=24),
    MappedField('d_model', 'model.width', default=2048),
    MappedField('n_heads', 'model.heads', default=16),
    MappedField('max_seq_len', 'data.length', default=2048),
    MappedField(
      'layer_norm_epsilon', 'model.norm', spec_argument('layernorm', 'epsilon', 1e-5), default=1e-5
    ),
    MappedField('emb_pdrop', 'model.dropout.embedding', default=0.0),
    MappedField('resid_pdrop', 'model.dropout.residual', default=0.0),
    MappedField('tie_word_embeddings', 'model.tie_embeddings', default=True),
    MappedField('vocab_size', 'vocab', default=50368),
    MappedField('eos_token_id', 'ids.eos', default=None),
    MappedField('pad_token_id', 'ids.pad', default=None),
    NestedFields(
      'attn_config',
      (
        MappedField('softmax_scale', 'model.score', SCALE, default=None),
        MappedField('attn_pdrop', 'model.dropout.attention', INT_IF_WHOLE, default=0),
        # transformers ignores other values of alibi_bias_max; the authors' code does not.
        SupportedValues(
          alibi=True,
          alibi_bias_max=8,
          attn_type='multihead_attention',
          clip_qkv=None,
          qk_ln=False,
          prefix_lm=False,
          attn_uses_sequence_id=False,
        ),
        IgnoredFields('attn_impl'),
      ),
    ),
    ConfigConstant('model.position', 'alibi'),
    ConfigConstant('model.feed_forward', 'gelu'),
    ConfigConstant('model.bias', False),
    SupportedValues(no_bias=True, logit_scale=None),
    # Our norms always sum in float32.
    EquivalentValues('norm_type', ('low_precision_layernorm', 'layernorm')),
    # ALiBi excludes learned positions, and the hidden layer is always four times as wide.
    IgnoredFields(
      'learned_pos_emb',
      'expansion_ratio',
      'embedding_fraction',
      'init_device',
      'init_config',
      'tokenizer_name',
      'verbose',
    ),
  )


def read_scale(text):
  """The scale of the score 'dot'; None: the default."""
  call = parse(text)
  if call.name != 'dot':
    raise ValueError(f"{text!r} is not supported by the family; use 'dot'")
  return dict(zip(('scale',), call.args), **call.kwargs).get('scale')


# The published class requires an int where the value is whole, such as 0.
INT_IF_WHOLE = Converter(float, lambda value: int(value) if value == int(value) else value)
SCALE = Converter(lambda value: 'dot' if value is None else f'dot(scale={value!r})', read_scale)


def weights(config):
  m = config.model
  yield Weight('transformer.wte.weight', 'embedding/table')
  for i, block in enumerate(block_paths(config)):
    name = f'transformer.blocks.{i}'
    yield from norm(f'{name}.norm_1', f'{block}/mixer_norm', bias=False)
    yield from norm(f'{name}.norm_2', f'{block}/feed_forward_norm', bias=False)
    yield Weight(
      f'{name}.attn.Wqkv.weight',
      tuple(f'{block}/mixer/{letter}/kernel' for letter in 'qkv'),
      '(n h c) d -> n d h c',
      dict(n=3, h=m.heads),
    )
    yield from output_projection(f'{name}.attn.out_proj', f'{block}/mixer/out', m, bias=False)
    yield from linear(f'{name}.ffn.up_proj', f'{block}/feed_forward/up', 'f d -> d f', bias=False)
    yield from linear(f'{name}.ffn.down_proj', f'{block}/feed_forward/down', 'd f -> f d', bias=False)
  yield from norm('transformer.norm_f', 'norm', bias=False)
  if not m.tie_embeddings:
    yield Weight('lm_head.weight', 'output/kernel', 'v d -> d v')


FAMILIES = (
  Family(
    model_type='mpt',
    architectures={
      'MptForCausalLM': 'vocabulary',
      'MptModel': 'features',
      'MPTForCausalLM': 'vocabulary',
      'MPTModel': 'features',
    },
    fields=fields,
    weights=weights,
    prefix='transformer.',
    ignored_tensors=r'lm_head\.weight',
  ),
)
