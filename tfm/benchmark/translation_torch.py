"""The measurement of `translation`, with `transformers`' Marian in PyTorch: same shape, same parameters,
float32.

  python -m tfm.benchmark.translation_torch runs/multi30k test 4     → {"seconds": …, "bleu": …, "texts": […]}

Marian is the 2017 Transformer, post-norm, with one embedding table; for a pre-norm run Pegasus is used, which
is Marian with pre-norm. `generate(num_beams=4)` runs with its defaults, which ours has too: a row stops as
soon as the best unfinished hypothesis, if it ended now, would score no better than the finished ones.
"""

import numpy as np
from ml_collections import ConfigDict

from tfm.benchmark.translation import PENALTY, load_task, print_measurement
from tfm.config.schema import parts
from tfm.decoding.translate import ROWS
from tfm.decoding.unroll_layers import unstack_layers
from tfm.errors import require
from tfm.parallel import chip_specs
from tfm.shapes import PyTree


# The config.model fields of a run whose parameters Marian can hold.
SHAPE = dict(
  architecture='encoder_decoder',
  dtype='float32',
  mixer='softmax',
  score='dot',
  position='sinusoidal',
  feed_forward='relu',
  norm='layernorm',
  residual='sequential',
  bias=True,
  tie_embeddings=True,
  scale_embeddings=True,
  embedding_norm=False,
  output_transform='',
  output_bias=False,
  output_soft_cap=0.0,
  pattern=(),
)
# norm_placement → classes of `transformers`.
NAMES = {
  'post': ('MarianConfig', 'MarianMTModel'),
  'pre': ('PegasusConfig', 'PegasusForConditionalGeneration'),
}


def validate_marian_shape(config: ConfigDict) -> None:
  """Raises ValueError for a model that Marian cannot represent."""
  m = config.model
  require(
    m.norm_placement in NAMES,
    f"config.model.norm_placement={m.norm_placement!r} is not Marian's; use 'pre' or 'post'",
  )
  for where, part in parts(config).items():
    required = SHAPE | dict(
      embedding_width=m.width,
      kv_heads=part.heads,
      head_width=m.width // part.heads,
      feed_forward_width=m.feed_forward_width,
      norm_placement=m.norm_placement,
      mask='causal' if where == 'model' else 'full',
    )
    if where == 'model.cross':
      required |= dict(position='none', heads=m.heads)
    for field, value in part.items():
      require(
        required.get(field, value) == value,
        f"config.{where}.{field}={value!r} is not Marian's; benchmark a run with {required.get(field)!r}",
      )
  require(
    config.data.source_tokenizer is None,
    f'config.data.source_tokenizer={config.data.source_tokenizer!r} gives the source a separate embedding '
    'table, and Marian has one; benchmark a run without source_tokenizer',
  )


def make_marian(config: ConfigDict, params: PyTree, vocab: int, eos: int):
  """Marian, or its pre-norm sibling, with a run's parameters.

  Marian's positions are all sines, then all cosines; the paper's alternate: the channels are permuted
  accordingly.
  """
  import torch
  import transformers

  validate_marian_shape(config)
  m = config.model
  D, F = m.width, m.feed_forward_width
  order = np.arange(D).reshape(D // 2, 2).T.reshape(-1)  # Marian's channels as indices into ours
  config_class, model_class = (getattr(transformers, name) for name in NAMES[m.norm_placement])
  model = model_class(
    config_class(
      vocab_size=vocab,
      d_model=D,
      encoder_layers=m.encoder.layers,
      decoder_layers=m.layers,
      encoder_attention_heads=m.encoder.heads,
      decoder_attention_heads=m.heads,
      encoder_ffn_dim=F,
      decoder_ffn_dim=F,
      activation_function='relu',
      scale_embedding=True,
      pad_token_id=eos,
      eos_token_id=eos,
      decoder_start_token_id=eos,
      forced_eos_token_id=None,
    )
  )
  state = {}

  def put(name, value):
    state[name] = torch.tensor(np.asarray(value, np.float32))

  def affine(name, kernel, bias, inputs=slice(None), outputs=slice(None)):
    put(f'{name}.weight', np.asarray(kernel)[inputs, outputs].T)
    put(f'{name}.bias', np.asarray(bias).reshape(-1)[outputs])

  def attention(name, p):
    for letter in 'qkv':
      affine(f'{name}.{letter}_proj', p[letter]['kernel'].reshape(D, D), p[letter]['bias'], inputs=order)
    affine(f'{name}.out_proj', p['out']['kernel'].reshape(D, D), p['out']['bias'], outputs=order)

  def norm(name, p):
    put(f'{name}.weight', p['scale'][order])
    put(f'{name}.bias', p['bias'][order])

  def stack(side, params, layers):
    blocks = (
      unstack_layers(params['stack']['layers'], layers) if 'layers' in params['stack'] else params['stack']
    )
    for i in range(layers):
      p, name = blocks[f'layers_{i}']['block_0'], f'model.{side}.layers.{i}'
      attention(f'{name}.self_attn', p['mixer'])
      norm(f'{name}.self_attn_layer_norm', p['mixer_norm'])
      if 'cross' in p:
        attention(f'{name}.encoder_attn', p['cross'])
        norm(f'{name}.encoder_attn_layer_norm', p['cross_norm'])
      affine(f'{name}.fc1', *(p['feed_forward']['up'][key] for key in ('kernel', 'bias')), inputs=order)
      affine(f'{name}.fc2', *(p['feed_forward']['down'][key] for key in ('kernel', 'bias')), outputs=order)
      norm(f'{name}.final_layer_norm', p['feed_forward_norm'])
    if 'norm' in params:
      norm(f'model.{side}.layer_norm', params['norm'])

  stack('encoder', params['encoder'], m.encoder.layers)
  stack('decoder', params, m.layers)
  for name in ('model.shared', 'model.encoder.embed_tokens', 'model.decoder.embed_tokens', 'lm_head'):
    put(f'{name}.weight', params['embedding']['table'][:vocab, order])
  missing, unexpected = model.load_state_dict(state, strict=False)
  missing = [
    name for name in missing if 'embed_positions' not in name and name != 'final_logits_bias'
  ]  # these are no parameters
  if missing or unexpected:
    raise RuntimeError(f'Marian misses parameters {missing}, and has no parameters {unexpected}')
  return model.eval()


def main() -> None:
  """Measures the run that the command line names."""
  import torch

  torch.set_num_threads(chip_specs.cpu_core_count())
  loaded, sources, references, beams = load_task()
  tokenizer, eos = loaded.tokenizer, loaded.tokenizer.eos_id
  model = make_marian(loaded.config, loaded.params, loaded.model.vocab, eos)

  def translate_all():
    tokens = [tokenizer.source_ids(source).tolist() for source in sources]
    by_length = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
    texts = [''] * len(tokens)
    for start in range(0, len(by_length), ROWS):
      batch = by_length[start : start + ROWS]
      longest = len(tokens[batch[-1]])
      ids = torch.tensor([tokens[i] + [eos] * (longest - len(tokens[i])) for i in batch])
      mask = torch.tensor([[1] * len(tokens[i]) + [0] * (longest - len(tokens[i])) for i in batch])
      with torch.inference_mode():
        out = model.generate(
          input_ids=ids,
          attention_mask=mask,
          num_beams=beams,
          do_sample=False,
          length_penalty=PENALTY.alpha,
          max_new_tokens=longest + loaded.config.decoding.max_extra_tokens,
        )
      for i, row in zip(batch, out[:, 1:].tolist()):
        texts[i] = tokenizer.decode(row[: row.index(eos)] if eos in row else row)
    return texts

  print_measurement(translate_all, references)


if __name__ == '__main__':
  main()
