"""GPT-2 (Radford et al. 2019)."""

from tfm.hf.families.fields import PLAIN, Always, Ignored, Only, Same, argument, learned
from tfm.hf.families.protocol import Family, Weight, blocks, norm


def fields(output):
  yield from shared()
  yield from (Only(scale_attn_by_inverse_layer_idx=False, reorder_and_upcast_attn=False), Ignored('n_ctx'))


def shared():
  """What GPT-BigCode has too."""
  yield from (
    Same('n_layer', 'model.layers', default=12),
    Same('n_embd', 'model.width', default=768),
    Same('n_head', 'model.heads', default=12),
    learned('n_positions', default=1024),
    Same('n_inner', 'model.feed_forward_width', default=None),
    Same('activation_function', 'model.feed_forward', PLAIN, default='gelu_new'),
    Same('layer_norm_epsilon', 'model.norm', argument('layernorm', 'epsilon', 1e-5), default=1e-5),
    Same('embd_pdrop', 'model.dropout.embedding', default=0.1),
    Same('attn_pdrop', 'model.dropout.attention', default=0.1),
    Same('resid_pdrop', 'model.dropout.residual', default=0.1),
    Same('tie_word_embeddings', 'model.tie_embeddings', default=True),
    Same('vocab_size', 'vocab', default=50257),
    Same('eos_token_id', 'ids.eos', default=50256),
    Same('pad_token_id', 'ids.pad', default=None),
    Always('model.bias', True),
    Only(scale_attn_weights=True),
  )


def weights(config):
  m = config.model
  yield Weight('transformer.wte.weight', 'embedding/table')
  yield Weight('transformer.wpe.weight', 'position_0/table')
  for i, block in enumerate(blocks(config)):
    name = f'transformer.h.{i}'
    yield from norm(f'{name}.ln_1', f'{block}/mixer_norm', bias=True)
    yield from norm(f'{name}.ln_2', f'{block}/feed_forward_norm', bias=True)
    # Its projections are [in, out].
    qkv, heads = [f'{block}/mixer/{part}' for part in 'qkv'], dict(n=3, h=m.heads)
    yield Weight(
      f'{name}.attn.c_attn.weight', tuple(f'{path}/kernel' for path in qkv), 'd (n h c) -> n d h c', heads
    )
    yield Weight(f'{name}.attn.c_attn.bias', tuple(f'{path}/bias' for path in qkv), '(n h c) -> n h c', heads)
    yield Weight(
      f'{name}.attn.c_proj.weight', f'{block}/mixer/out/kernel', '(h c) d -> h c d', dict(h=m.heads)
    )
    yield Weight(f'{name}.attn.c_proj.bias', f'{block}/mixer/out/bias')
    for theirs, ours in (('c_fc', 'up'), ('c_proj', 'down')):
      yield Weight(f'{name}.mlp.{theirs}.weight', f'{block}/feed_forward/{ours}/kernel')
      yield Weight(f'{name}.mlp.{theirs}.bias', f'{block}/feed_forward/{ours}/bias')
  yield from norm('transformer.ln_f', 'norm', bias=True)
  if not m.tie_embeddings:
    yield Weight('lm_head.weight', 'output/kernel', 'v d -> d v')


FAMILIES = (
  Family(
    model_type='gpt2',
    architectures={'GPT2LMHeadModel': 'vocabulary', 'GPT2Model': 'features'},
    fields=fields,
    weights=weights,
    prefix='transformer.',
    ignored=r'(transformer\.)?h\.\d+\.attn\.(masked_)?bias|lm_head\.weight',
  ),
)
