"""GPT-2 in its four sizes.

Question:  what does a plain decoder learn from text alone, and how does that change with its size?
Source:    Radford et al. 2019, Language Models are Unsupervised Multitask Learners, Table 2, and its code:
           the model, the batch size of 512 and the length of 1024. The paper omits the optimizer; it follows
           GPT-3 at these sizes (Brown et al. 2020, Table 2.1 and App. B): AdamW, learning rates, 300 B tokens
           with a warmup of 375 M. WebText was never published; C4's WebText-like subset replaces it, which
           TFDS must prepare.
Command:   tfm train --config=configs/gpt2.py --workdir=runs/gpt2
           tfm train --config=configs/gpt2.py:xl --workdir=runs/gpt2-xl         (medium, large likewise)
Cost:      not measured.
Expected:  not measured. Published: zero-shot perplexity on WikiText-103 of 37.50 (small), 26.37 (medium),
           22.05 (large) and 17.48 (xl).
"""

from typing import NamedTuple

from ml_collections import ConfigDict

from tfm.config.library import require_argument


class Size(NamedTuple):
  """A row of Table 2, and the learning rate of GPT-3 at this size."""

  layers: int
  width: int
  heads: int
  learning_rate: float


SIZES = {
  'small': Size(12, 768, 12, 6e-4),
  'medium': Size(24, 1024, 16, 3e-4),
  'large': Size(36, 1280, 20, 2.5e-4),
  'xl': Size(48, 1600, 25, 2e-4),
}


def get_config(arg: str = '') -> ConfigDict:
  require_argument(arg, SIZES)
  size = SIZES[arg or 'small']
  config = ConfigDict()
  config.data = dict(source="tfds('c4/webtextlike')", tokenizer='sentencepiece(50257)', length=1024)
  config.model = dict(
    layers=size.layers,
    width=size.width,
    heads=size.heads,
    position='learned(rows=1024)',
    feed_forward='gelu_tanh',
    norm='layernorm(1e-5)',
    bias=True,
    initializer='normal(0.02)',
    depth_scaled=True,
    dropout=dict(embedding=0.1, attention=0.1, residual=0.1),
    dtype='bfloat16',
    remat='full' if size.layers > 24 else 'none',
  )
  config.optimizer = dict(
    name='adamw(b1=0.9, b2=0.95, weight_decay=0.1)',
    learning_rate=size.learning_rate,
    schedule='cosine(0.1)',
    warmup=715,
    clip=1.0,
  )
  config.training = dict(
    steps=572_000, batch_size=512, loss_chunk=65_536, evaluate_every=1000, evaluation_batches=20
  )
  return config
