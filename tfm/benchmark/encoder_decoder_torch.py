"""The measurement of `encoder_decoder` with the classes of `transformers` in PyTorch: same shapes, float32.

python -m tfm.benchmark.encoder_decoder_torch marian     → {"tokens_per_second": …, "peak_memory_mib": …}
"""

import sys

from tfm.benchmark.encoder_decoder import CONFIGS, LENGTH, ROWS, VOCAB
from tfm.benchmark.gpt2 import TRAINING_SECONDS, print_rate
from tfm.benchmark.gpt2_torch import make_step
from tfm.benchmark.timing import seconds_per_call


def make_model(model_type: str):
  """The published class with random values."""
  import torch
  import transformers

  torch.manual_seed(0)
  config = transformers.AutoConfig.for_model(model_type, **CONFIGS[model_type])
  return transformers.AutoModelForSeq2SeqLM.from_config(config)


def main(model_type: str) -> float:
  """Target tokens per second of whole training steps: forward, backward, clipping, AdamW."""
  import torch

  source, targets = (torch.randint(2, VOCAB, (ROWS, LENGTH)) for _ in range(2))
  step = make_step(make_model(model_type), dict(input_ids=source, labels=targets))
  return targets.numel() / seconds_per_call(step, lambda _: None, seconds=TRAINING_SECONDS)


if __name__ == '__main__':
  print_rate(main(sys.argv[1]))
