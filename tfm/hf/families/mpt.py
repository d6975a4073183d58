"""MPT (MosaicML 2023)."""

from tfm.hf.families.fields import Always, Either, Form, Ignored, Inside, Only, Same, argument
from tfm.hf.families.gpt_neox import out
from tfm.hf.families.protocol import Family, Weight, blocks, both, norm
from tfm.spec import parse


def fields(output):
  yield from (
    Same('n_layers', 'model.layers', default=24),
    Same('d_model', 'model.width', default=2048),
    Same('n_heads', 'model.heads', default=16),
    Same('max_seq_len', 'data.length', default=2048),
    Same('layer_norm_epsilon', 'model.norm', argument('layernorm', 'epsilon', 1e-5), default=1e-5),
    Same('emb_pdrop', 'model.dropout.embedding', default=0.0),
    Same('resid_pdrop', 'model.dropout.residual', default=0.0),
    Same('tie_word_embeddings', 'model.tie_embeddings', default=True),
    Same('vocab_size', 'vocab', default=50368),
    Same('eos_token_id', 'ids.eos', default=None),
    Same('pad_token_id', 'ids.pad', default=None),
    Inside(
      'attn_config',
      (
        Same('softmax_scale', 'model.score', SCALE, default=None),
        Same('attn_pdrop', 'model.dropout.attention', WHOLE, default=0),
        # Of another alibi_bias_max the authors' code takes notice, and that of transformers does not.
        Only(
          alibi=True,
          alibi_bias_max=8,
          attn_type='multihead_attention',
          clip_qkv=None,
          qk_ln=False,
          prefix_lm=False,
          attn_uses_sequence_id=False,
        ),
        Ignored('attn_impl'),
      ),
    ),
    Always('model.position', 'alibi'),
    Always('model.feed_forward', 'gelu'),
    Always('model.bias', False),
    Only(no_bias=True, logit_scale=None),
    # Sums of norms are in float32 here, whatever is said.
    Either('norm_type', ('low_precision_layernorm', 'layernorm')),
    # There are no learned positions beside ALiBi, and the hidden layer is always four times as wide.
    Ignored(
      'learned_pos_emb',
      'expansion_ratio',
      'embedding_fraction',
      'init_device',
      'init_config',
      'tokenizer_name',
      'verbose',
    ),
  )


def scale(text):
  """Of 'dot'; None: the usual one."""
  call = parse(text)
  if call.name != 'dot':
    raise ValueError(f"{text!r} is not said by the family; 'dot' would be")
  return dict(zip(('scale',), call.args), **call.kwargs).get('scale')


# The published class wants a whole number, which 0 is.
WHOLE = Form(float, lambda value: int(value) if value == int(value) else value)
SCALE = Form(lambda value: 'dot' if value is None else f'dot(scale={value!r})', scale)


def weights(config):
  m = config.model
  yield Weight('transformer.wte.weight', 'embedding/table')
  for i, block in enumerate(blocks(config)):
    name = f'transformer.blocks.{i}'
    yield from norm(f'{name}.norm_1', f'{block}/mixer_norm', bias=False)
    yield from norm(f'{name}.norm_2', f'{block}/feed_forward_norm', bias=False)
    yield Weight(
      f'{name}.attn.Wqkv.weight',
      tuple(f'{block}/mixer/{letter}/kernel' for letter in 'qkv'),
      '(n h c) d -> n d h c',
      dict(n=3, h=m.heads),
    )
    yield from out(f'{name}.attn.out_proj', f'{block}/mixer/out', m, bias=False)
    yield from both(f'{name}.ffn.up_proj', f'{block}/feed_forward/up', 'f d -> d f', bias=False)
    yield from both(f'{name}.ffn.down_proj', f'{block}/feed_forward/down', 'd f -> f d', bias=False)
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
    ignored=r'lm_head\.weight',
  ),
)
