"""GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023)."""

from tfm.hf.families import rope
from tfm.hf.families.fields import PLAIN, Again, Always, Ignored, Same, argument, names
from tfm.hf.families.protocol import Family, Part, Weight, biases, blocks, both, norm


def fields(output):
  yield from (
    Same('num_hidden_layers', 'model.layers', default=44),
    Same('hidden_size', 'model.width', default=6144),
    Same('num_attention_heads', 'model.heads', default=64),
    Same('intermediate_size', 'model.feed_forward_width', default=24576),
    Same('hidden_act', 'model.feed_forward', PLAIN, default='gelu'),
    Same('layer_norm_eps', 'model.norm', argument('layernorm', 'epsilon', 1e-5), default=1e-5),
    Same(
      'use_parallel_residual', 'model.residual', names({True: 'parallel', False: 'sequential'}), default=True
    ),
    Same(
      'attention_bias', 'model.mixer', names({True: 'softmax', False: "softmax(biases='')"}), default=True
    ),
    rope.field(theta='rotary_emb_base', fraction='rotary_pct', usual_fraction=0.25, usual_length=2048),
    Again('rope_theta', 'rotary_emb_base', 10_000.0),
    Again('partial_rotary_factor', 'rotary_pct', 0.25),
    Same('max_position_embeddings', 'data.length', default=2048),
    Same('attention_dropout', 'model.dropout.attention', default=0.0),
    Same('hidden_dropout', 'model.dropout.embedding', default=0.0),
    Same('hidden_dropout', 'model.dropout.residual', default=0.0),
    Same('tie_word_embeddings', 'model.tie_embeddings', default=False),
    Same('vocab_size', 'vocab', default=50432),
    Same('eos_token_id', 'ids.eos', default=2),
    Same('pad_token_id', 'ids.pad', default=None),
    Always('model.bias', True),
    Ignored('is_decoder', 'attention_probs_dropout_prob', 'hidden_dropout_prob', 'custom_pipelines'),
  )


def weights(config):
  m = config.model
  yield Weight('gpt_neox.embed_in.weight', 'embedding/table')
  for i, block in enumerate(blocks(config)):
    yield from layer(f'gpt_neox.layers.{i}', block, m)
  yield from norm('gpt_neox.final_layer_norm', 'norm', bias=True)
  if not m.tie_embeddings:
    yield Weight('embed_out.weight', 'output/kernel', 'v d -> d v')


PARTS = dict(
  qkv='attention.query_key_value', out='attention.dense', up='mlp.dense_h_to_4h', down='mlp.dense_4h_to_h'
)
NORMS = dict(input_layernorm='mixer_norm', post_attention_layernorm='feed_forward_norm')


def layer(name, path, section, parts=PARTS, norms=NORMS):
  """A block whose queries, keys and values are one projection; `parts` and `norms` are what its tensors are called."""
  have = biases(section) == 'qkvo'
  for theirs, ours in norms.items():
    yield from norm(f'{name}.{theirs}', f'{path}/{ours}', bias=True)
  yield from fused(f'{name}.{parts["qkv"]}', f'{path}/mixer', section, have)
  yield from out(f'{name}.{parts["out"]}', f'{path}/mixer/out', section, have)
  yield from both(f'{name}.{parts["up"]}', f'{path}/feed_forward/up', 'f d -> d f', section.bias)
  yield from both(f'{name}.{parts["down"]}', f'{path}/feed_forward/down', 'd f -> f d', section.bias)


def fused(name, path, section, bias):
  """Queries, keys and values of one projection, group after group of heads: its queries, its key, its value."""
  K, G = section.kv_heads, section.heads // section.kv_heads
  for theirs, ours, d in (('weight', 'kernel', 'd '), ('bias', 'bias', '')):
    if bias or ours == 'kernel':
      queries = Part(f'{path}/q/{ours}', G, f'g {d}k c -> {d}(k g) c', dict(k=K))
      yield Weight(
        f'{name}.{theirs}',
        (queries, f'{path}/k/{ours}', f'{path}/v/{ours}'),
        f'(k n c) {d} -> n {d} k c',
        dict(k=K, n=G + 2),
      )


def out(name, path, section, bias):
  """The projection out of the heads."""
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
    ignored=r'(gpt_neox\.)?layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)|(embed_out|lm_head)\.weight',
  ),
)
