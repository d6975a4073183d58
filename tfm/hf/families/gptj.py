"""GPT-J (Wang & Komatsuzaki 2021)."""

from tfm.hf.families import gpt_neox, rope
from tfm.hf.families.fields import PLAIN, Always, Both, Given, Ignored, Only, Same, argument
from tfm.hf.families.protocol import Family, Weight, blocks, both, norm


ROPE = rope.field(interleaved=True)


def fields(output):
  yield from (
    Same('n_layer', 'model.layers', default=28),
    Same('n_embd', 'model.width', default=4096),
    Same('n_head', 'model.heads', default=16),
    Same('n_positions', 'data.length', default=2048),
    Both(rotated, channels),
    Same('n_inner', 'model.feed_forward_width', default=None),
    Same('activation_function', 'model.feed_forward', PLAIN, default='gelu_new'),
    Same('layer_norm_epsilon', 'model.norm', argument('layernorm', 'epsilon', 1e-5), default=1e-5),
    Same('embd_pdrop', 'model.dropout.embedding', default=0.0),
    Same('attn_pdrop', 'model.dropout.attention', default=0.0),
    Same('resid_pdrop', 'model.dropout.residual', default=0.0),
    Same('tie_word_embeddings', 'model.tie_embeddings', default=False),
    Same('vocab_size', 'vocab', default=50400),
    Same('eos_token_id', 'ids.eos', default=50256),
    Same('pad_token_id', 'ids.pad', default=None),
    Always('model.residual', 'parallel_one_norm'),
    Always('model.bias', True),
    Always('model.mixer', "softmax(biases='')"),
    Always('model.output_bias', output == 'vocabulary'),
    Only(rotary=True, scale_attn_weights=True),
    Ignored('n_ctx'),
  )


def rotated(given):
  """The rotated channels of a head as a part of all."""
  channels, head = given.take('rotary_dim', 64), given.take('n_embd', 4096) // given.take('n_head', 16)
  if channels is None:
    raise ValueError(
      f'config.json: rotary_dim=None is not understood; {head}, the whole of each head, would do'
    )
  return ROPE.reading(Given(dict(partial_rotary_factor=channels / head, max_position_embeddings=0)))


def channels(config):
  return dict(
    rotary_dim=round(ROPE.writing(config).get('partial_rotary_factor', 1.0) * config['model.head_width'])
  )


def weights(config):
  m = config.model
  yield Weight('transformer.wte.weight', 'embedding/table')
  for i, block in enumerate(blocks(config)):
    name = f'transformer.h.{i}'
    yield from norm(f'{name}.ln_1', f'{block}/norm', bias=True)
    for letter in 'qkv':
      yield from both(
        f'{name}.attn.{letter}_proj',
        f'{block}/mixer/{letter}',
        '(h c) d -> d h c',
        False,
        sizes=dict(h=m.heads),
      )
    yield from gpt_neox.out(f'{name}.attn.out_proj', f'{block}/mixer/out', m, bias=False)
    yield from both(f'{name}.mlp.fc_in', f'{block}/feed_forward/up', 'f d -> d f', bias=True)
    yield from both(f'{name}.mlp.fc_out', f'{block}/feed_forward/down', 'd f -> f d', bias=True)
  yield from norm('transformer.ln_f', 'norm', bias=True)
  yield from output(m)


def output(model):
  """The output, with a bias of each token; of a model that has one."""
  if not model.tie_embeddings:
    yield Weight('lm_head.weight', 'output/kernel', 'v d -> d v')
  if model.output_bias:
    yield Weight('lm_head.bias', 'bias/bias')


FAMILIES = (
  Family(
    model_type='gptj',
    architectures={'GPTJForCausalLM': 'vocabulary', 'GPTJModel': 'features'},
    fields=fields,
    weights=weights,
    prefix='transformer.',
    ignored=r'(transformer\.)?h\.\d+\.attn\.(bias|masked_bias|embed_positions)|lm_head\.weight',
  ),
)
