"""Training speed of small encoder-decoders as Marian, BART and T5 are, measured in this process.

  python -m tfm.benchmark.encoder_decoder marian     → {"tokens_per_second": …, "peak_memory_mib": …}

`encoder_decoder_torch` does the same with the classes of `transformers`; `tfm benchmark encoder_decoder`
alternates both and prints the ratio.
"""

import sys

from tfm.benchmark.gpt2 import TRAINING_SECONDS, print_rate


# Rows of pairs: so many tokens of a source, and of a target.
ROWS, LENGTH, VOCAB = 32, 64, 8192
BART = dict(
  d_model=256,
  encoder_layers=3,
  decoder_layers=3,
  encoder_attention_heads=4,
  decoder_attention_heads=4,
  encoder_ffn_dim=1024,
  decoder_ffn_dim=1024,
  max_position_embeddings=LENGTH,
  activation_function='relu',
  dropout=0.0,
  vocab_size=VOCAB,
  pad_token_id=0,
  eos_token_id=1,
  decoder_start_token_id=1,
)
# model_type → config.json, without dropout; both sides build their model from it.
CONFIGS = dict(
  marian=BART | dict(scale_embedding=True, forced_eos_token_id=None),
  bart=BART | dict(bos_token_id=1, forced_eos_token_id=None),
  t5=dict(
    d_model=256,
    d_kv=64,
    d_ff=1024,
    num_layers=3,
    num_decoder_layers=3,
    num_heads=4,
    n_positions=LENGTH,
    dropout_rate=0.0,
    vocab_size=VOCAB,
    pad_token_id=0,
    eos_token_id=1,
    decoder_start_token_id=0,
  ),
)


def make_experiment(model_type: str):
  """The experiment that `tfm import` makes of such a config.json."""
  from tfm.config.assemble import Experiment
  from tfm.config.resolve import resolve_config
  from tfm.hf.from_config import config_from_hf, load_families

  config, *_ = config_from_hf(load_families()[model_type], CONFIGS[model_type])
  with config.unlocked():
    config.training.update(batch_size=ROWS, loss_chunk=512)
    config.data.length = LENGTH
  return Experiment(resolve_config(config))


def main(model_type: str) -> float:
  """Target tokens per second of whole training steps: forward, backward, clipping, AdamW."""
  from tfm.benchmark.training_step import tokens_per_second

  return tokens_per_second(make_experiment(model_type), VOCAB, TRAINING_SECONDS)


if __name__ == '__main__':
  print_rate(main(sys.argv[1]))
