"""Phi 1 to 2 (Gunasekar et al. 2023; Li et al. 2023)."""

from tfm.hf.families import rope
from tfm.hf.families.fields import PLAIN, Always, Both, Same, argument
from tfm.hf.families.gpt_neox import out
from tfm.hf.families.gptj import output as outputs
from tfm.hf.families.protocol import Family, Weight, blocks, both, norm
from tfm.spec import parse


def fields(output):
  yield from (
    Same('num_hidden_layers', 'model.layers', default=24),
    Same('hidden_size', 'model.width', default=2048),
    Same('num_attention_heads', 'model.heads', default=32),
    Same('num_key_value_heads', 'model.kv_heads', default=None),
    Same('intermediate_size', 'model.feed_forward_width', default=8192),
    Same('hidden_act', 'model.feed_forward', PLAIN, default='gelu_new'),
    Same('layer_norm_eps', 'model.norm', EPSILON, default=1e-5),
    Both(normed, norms),
    rope.field(usual_fraction=0.5, usual_length=2048),
    Same('max_position_embeddings', 'data.length', default=2048),
    Same('embd_pdrop', 'model.dropout.embedding', default=0.0),
    Same('attention_dropout', 'model.dropout.attention', default=0.0),
    Same('resid_pdrop', 'model.dropout.residual', default=0.0),
    Same('tie_word_embeddings', 'model.tie_embeddings', default=False),
    Same('vocab_size', 'vocab', default=51200),
    Same('eos_token_id', 'ids.eos', default=2),
    Same('pad_token_id', 'ids.pad', default=None),
    Always('model.residual', 'parallel_one_norm'),
    Always('model.bias', True),
    Always('model.output_bias', output == 'vocabulary'),
  )


EPSILON = argument('layernorm', 'epsilon', 1e-5)


def normed(given):
  """Queries and keys may have norms of the epsilon that all have."""
  has = given.take('qk_layernorm', False)
  return {
    'model.mixer': f'softmax(qk_norm={EPSILON.read(given.take("layer_norm_eps", 1e-5))!r})'
    if has
    else 'softmax'
  }


def norms(config):
  return dict(qk_layernorm=bool(parse(config['model.mixer']).kwargs.get('qk_norm')))


def weights(config):
  m = config.model
  yield Weight('model.embed_tokens.weight', 'embedding/table')
  for i, block in enumerate(blocks(config)):
    name = f'model.layers.{i}'
    yield from norm(f'{name}.input_layernorm', f'{block}/norm', bias=True)
    for letter, heads in (('q', m.heads), ('k', m.kv_heads), ('v', m.kv_heads)):
      yield from both(
        f'{name}.self_attn.{letter}_proj',
        f'{block}/mixer/{letter}',
        '(h c) d -> d h c',
        True,
        sizes=dict(h=heads),
      )
    if norms({'model.mixer': m.mixer})['qk_layernorm']:
      for letter in 'qk':
        yield from norm(f'{name}.self_attn.{letter}_layernorm', f'{block}/mixer/{letter}_norm', bias=True)
    yield from out(f'{name}.self_attn.dense', f'{block}/mixer/out', m, bias=True)
    yield from both(f'{name}.mlp.fc1', f'{block}/feed_forward/up', 'f d -> d f', bias=True)
    yield from both(f'{name}.mlp.fc2', f'{block}/feed_forward/down', 'd f -> f d', bias=True)
  yield from norm('model.final_layernorm', 'norm', bias=True)
  yield from outputs(m)


FAMILIES = (
  Family(
    model_type='phi',
    architectures={'PhiForCausalLM': 'vocabulary', 'PhiModel': 'features'},
    fields=fields,
    weights=weights,
    prefix='model.',
    ignored=r'.*rotary_emb\.inv_freq|lm_head\.weight',
  ),
)
