"""LLaMA 1, 2, 3, 3.1 and 3.2 in every published size.

Question:  how good is a plain decoder of established components after trillions of tokens?
Source:    Touvron et al. 2023a, LLaMA, Table 2 and §2.3; Touvron et al. 2023b, Llama 2, §2.2 and Table 1;
           Llama Team 2024, The Llama 3 Herd of Models, Table 3 and §3.4.1; the model cards of 3.1 and 3.2.
           Their text mixtures were not published; C4, 15 % of LLaMA 1's mixture, replaces them, which TFDS
           must prepare.
Command:   tfm train --config=configs/llama.py --workdir=runs/llama-3-8b
           tfm train --config=configs/llama.py:3.2-1b --workdir=runs/llama-3.2-1b   (1-7b … 3.2-3b, see SIZES)
           tfm inspect --config=configs/llama.py:3.1-405b --devices=2048
Cost:      not measured. Published: 82,432 A100 hours for 1-7b.
Expected:  not measured. Published: the results in the papers above.
"""

from typing import NamedTuple

from ml_collections import ConfigDict

from tfm.config.library import require_argument


class Size(NamedTuple):
  """A row of the papers' tables: the model, the peak learning rate, and the number of training tokens."""

  layers: int
  width: int
  heads: int
  kv_heads: int
  feed_forward_width: int
  epsilon: float
  learning_rate: float
  tokens: float


class Generation(NamedTuple):
  """Settings that the sizes of a generation share; `batch` counts sequences, `warmup` steps."""

  vocab: int
  length: int
  batch: int
  position: str
  warmup: int = 2000
  floor: float = 0.1
  eps: float = 1e-8
  tie_embeddings: bool = False


def extended_rope(factor: float) -> str:
  """Rotary positions that extend 8192 tokens to 131,072; the recipe is that of the training at 8192."""
  return f'rope(500_000.0, scaling="llama3(factor={factor}, original=8192)")'


# A batch has 4 M tokens, from the third generation on 16 M; its earlier stages of 4 M and 8 M are omitted.
THIRD = dict(warmup=8000, floor=0.01)  # of 405b; those of the other sizes were not published
GENERATIONS = {
  '1': Generation(32_000, 2048, 2048, 'rope(10_000.0)'),
  '2': Generation(32_000, 4096, 1024, 'rope(10_000.0)', eps=1e-5),
  '3': Generation(128_256, 8192, 2048, 'rope(500_000.0)', **THIRD),
  '3.1': Generation(128_256, 8192, 2048, extended_rope(8.0), **THIRD),
  '3.2': Generation(128_256, 8192, 2048, extended_rope(32.0), **THIRD, tie_embeddings=True),
}
# 3.2 was pruned and distilled from 3.1. Trained from scratch here, it uses the learning rate of 8b.
SIZES = {
  '1-7b': Size(32, 4096, 32, 32, 11_008, 1e-6, 3e-4, 1.0e12),
  '1-13b': Size(40, 5120, 40, 40, 13_824, 1e-6, 3e-4, 1.0e12),
  '1-33b': Size(60, 6656, 52, 52, 17_920, 1e-6, 1.5e-4, 1.4e12),
  '1-65b': Size(80, 8192, 64, 64, 22_016, 1e-5, 1.5e-4, 1.4e12),
  '2-7b': Size(32, 4096, 32, 32, 11_008, 1e-5, 3e-4, 2.0e12),
  '2-13b': Size(40, 5120, 40, 40, 13_824, 1e-5, 3e-4, 2.0e12),
  '2-70b': Size(80, 8192, 64, 8, 28_672, 1e-5, 1.5e-4, 2.0e12),
  '3-8b': Size(32, 4096, 32, 8, 14_336, 1e-5, 3e-4, 15.6e12),
  '3-70b': Size(80, 8192, 64, 8, 28_672, 1e-5, 1.5e-4, 15.6e12),
  '3.1-8b': Size(32, 4096, 32, 8, 14_336, 1e-5, 3e-4, 15.6e12),
  '3.1-70b': Size(80, 8192, 64, 8, 28_672, 1e-5, 1.5e-4, 15.6e12),
  '3.1-405b': Size(126, 16_384, 128, 8, 53_248, 1e-5, 8e-5, 15.6e12),
  '3.2-1b': Size(16, 2048, 32, 8, 8192, 1e-5, 3e-4, 9.0e12),
  '3.2-3b': Size(28, 3072, 24, 8, 8192, 1e-5, 3e-4, 9.0e12),
}


def get_config(arg: str = '') -> ConfigDict:
  name = arg or '3-8b'
  require_argument(arg, SIZES)
  size, shared = SIZES[name], GENERATIONS[name.partition('-')[0]]
  config = ConfigDict()
  config.data = dict(source="tfds('c4/en')", tokenizer=f'sentencepiece({shared.vocab})', length=shared.length)
  # The initialization was not published; GPT-2's is used.
  config.model = dict(
    layers=size.layers,
    width=size.width,
    heads=size.heads,
    kv_heads=size.kv_heads,
    position=shared.position,
    feed_forward='swiglu',
    feed_forward_width=size.feed_forward_width,
    norm=f'rmsnorm({size.epsilon:.0e})',
    tie_embeddings=shared.tie_embeddings,
    initializer='normal(0.02)',
    depth_scaled=True,
    dtype='bfloat16',
    remat='full',
  )
  config.optimizer = dict(
    name=f'adamw(b1=0.9, b2=0.95, eps={shared.eps:.0e}, weight_decay=0.1)',
    learning_rate=size.learning_rate,
    schedule=f'cosine({shared.floor})',
    warmup=shared.warmup,
    clip=1.0,
  )
  config.training = dict(
    steps=int(size.tokens) // (shared.batch * shared.length),
    batch_size=shared.batch,
    loss_chunk=65_536,
    evaluate_every=1000,
    evaluation_batches=20,
  )
  config.mesh = dict(data=1, fsdp=-1)
  return config
